"""Time to first token and throughput, through our HTTP APIs, on a GPU.

Three processes: the load, the server with its HTTP APIs, and the engine with the model. Weights are
random, so the assistant's output is scripted; the engine's prefill and decoding are real.
"""

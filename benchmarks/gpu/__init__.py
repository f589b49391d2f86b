"""The time to the first token and the tokens a second, through our HTTP APIs, on a GPU.

Three processes: the load, the server with its HTTP APIs, and the engine with the model. Weights are
random, so what the assistant says is acted; what the engine reads and generates is real.
"""

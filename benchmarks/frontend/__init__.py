"""The cost of a streamed token in the frontend, against Dynamo and vLLM: `make bench-frontend`.

Only the frontend's own process is measured. The engine behind it and the client in front of it are
processes of their own, so that it pays for real sockets. Servers get the same load, by turns.
"""

"""The cost of a streamed token in the frontend, against Dynamo and vLLM: `make bench-frontend`.

Only the frontend's own process is measured. Its engine and its client are separate processes, so
that the cost includes real sockets. The servers get the same load, alternately.
"""

"""What a streamed token costs in the frontend, beside Dynamo's and vLLM's: `make bench-frontend`.

Only the frontend's own process is measured. The engine behind it and the client in front of it are
processes of their own, so that it pays for real sockets. Servers get the same load, by turns.
"""

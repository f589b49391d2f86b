"""Engine that runs models with transformers, on a GPU or a CPU, in a child process.

The child process imports this package without the dependencies of the server, so nothing is
imported here.
"""

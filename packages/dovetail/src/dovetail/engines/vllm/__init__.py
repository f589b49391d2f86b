"""vLLM: in a child process, or an unmodified remote server over its completions API.

The child process imports this package without the dependencies of the server, so nothing is
imported here.
"""

"""The child process: torch, the model, and a server for it."""

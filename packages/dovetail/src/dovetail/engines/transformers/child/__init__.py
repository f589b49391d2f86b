"""What runs in the engine's own process: torch, the model, and a server for it."""

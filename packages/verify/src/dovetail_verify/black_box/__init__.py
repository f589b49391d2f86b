"""Checks that apply to any server with any model, however weak the model is."""

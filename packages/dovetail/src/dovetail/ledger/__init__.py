"""Turns remembered: what the model said, token for token, and how to know it again."""

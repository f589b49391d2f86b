"""Traces: a line for each request that is over, and what can be made of them."""

"""Traces: write one line per finished request; read, summarize and visualize them."""

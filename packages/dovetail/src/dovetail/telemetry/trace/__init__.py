"""Traces: write one line per finished request, and read, summarize and draw them."""

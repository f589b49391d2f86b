"""Responses that are kept: going on from them, looking them up, work in the background."""

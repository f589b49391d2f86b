"""A server of vLLM's completions protocol for any token engine.

Dovetail's engines that run in separate processes implement this protocol, so that every client of
vLLM can use them, including Dovetail's own.
"""

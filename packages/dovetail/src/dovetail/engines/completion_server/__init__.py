"""The server side of vLLM's completions protocol, over any token engine.

Our engines that run in separate processes serve it, so that clients of vLLM, ours among them, can
use all of them.
"""

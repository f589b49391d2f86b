"""The server side of vLLM's completions protocol, over any token engine.

Our engines that run in a process of their own speak it: what is made for vLLM's clients, ours among
them, reads them all.
"""

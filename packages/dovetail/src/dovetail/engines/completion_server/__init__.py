"""The server side of vLLM's completions protocol, over any token engine.

Our engines that run in a process of their own speak it: what is made for vLLM's clients, ours among
them, reads them all.
"""

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import ServedModel, read_model
from dovetail.net.listener import Address, listen, serve

__all__ = ["Address", "CompletionsServer", "ServedModel", "listen", "read_model", "serve"]

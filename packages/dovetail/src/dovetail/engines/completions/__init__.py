"""The client side of vLLM's completions protocol: ids in, ids out, over `/v1/completions`."""

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.errors import error_of_status

__all__ = ["CompletionsClient", "error_of_status"]

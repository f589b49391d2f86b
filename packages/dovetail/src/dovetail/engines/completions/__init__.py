"""The client side of vLLM's completions protocol: ids in, ids out, over `/v1/completions`."""

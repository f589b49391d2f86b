"""A client of vLLM's completions protocol: token ids in, token ids out, over `/v1/completions`."""

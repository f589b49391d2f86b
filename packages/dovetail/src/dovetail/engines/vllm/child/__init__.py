"""The process that runs vLLM's `AsyncLLM`. It imports vLLM, so the server never imports it."""

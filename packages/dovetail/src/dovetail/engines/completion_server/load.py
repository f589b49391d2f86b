"""What a server did since its start and does now, in the words of vLLM's metrics."""

from collections.abc import Mapping
from typing import Any

from dovetail.engines.completion_server.response import UsageCounter


class ServerStats:
    """Counts of requests and tokens."""

    __slots__ = ("_cached", "_finished", "_generated", "_prompt", "_running")

    def __init__(self) -> None:
        self._prompt = self._cached = self._generated = self._running = self._finished = 0

    def request_started(self, counter: UsageCounter) -> None:
        """A request is taken."""
        self._running += 1
        self._prompt += counter.prompt

    def request_finished(self, counter: UsageCounter) -> None:
        """A request is over, finished or not."""
        self._running -= 1
        self._finished += 1
        self._generated += counter.generated
        self._cached += counter.cached or 0

    def render(self, model: str, facts: Mapping[str, Any]) -> bytes:
        """The counts in Prometheus' form. An engine that knows better tells by its facts."""
        values = [
            ("gauge", "num_requests_running", facts.get("running", self._running)),
            ("gauge", "num_requests_waiting", facts.get("waiting", 0)),
            ("gauge", "kv_cache_usage_perc", facts.get("cache_usage", 0)),
            ("counter", "prompt_tokens_total", self._prompt),
            ("counter", "generation_tokens_total", self._generated),
            ("counter", "prefix_cache_queries_total", self._prompt),
            ("counter", "prefix_cache_hits_total", self._cached),
            ("counter", "request_success_total", self._finished),
        ]
        label = f'{{model_name="{model}"}}'
        lines = [f"# TYPE vllm:{n} {kind}\nvllm:{n}{label} {value}\n" for kind, n, value in values]
        return "".join(lines).encode()

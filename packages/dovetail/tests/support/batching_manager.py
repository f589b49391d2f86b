"""A fake of the manager of transformers' continuous batching: it records requests."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dovetail.engines.transformers.child.engine import BatchingEngine
from dovetail.engines.transformers.child.grammar import GrammarCompiler
from dovetail.engines.transformers.child.sampling_params import SamplingDefaults

VOCABULARY = 100
Handler = Callable[[Any], None]


class Output(SimpleNamespace):
    """An output of the library: all tokens so far."""

    def is_finished(self) -> bool:
        return bool(self.finished)


def output(*ids: int, finished: bool = False, error: str | None = None) -> Output:
    return Output(generated_tokens=list(ids), finished=finished, error=error)


class Manager:
    """Accepts and records requests, and delivers the outputs of a test."""

    def __init__(self, found: int = 0) -> None:
        self.handlers: dict[str, Handler] = {}
        self.output_router = SimpleNamespace(result_handlers=self.handlers)
        self.requests: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.leftovers = [output(1), output(2)]
        self.running = self.accepting = True
        self.input_queue = SimpleNamespace(qsize=lambda: 2)
        cache = SimpleNamespace(search_prefix_match=lambda request_id, prompt_ids: found)
        scheduler = SimpleNamespace(waiting_requests=[1], active_requests=[1, 2, 3])
        self.batch_processor = SimpleNamespace(cache=cache, scheduler=scheduler)

    def start(self) -> None: ...

    def is_running(self) -> bool:
        return self.running

    def get_result(self, timeout: float) -> Output | None:
        return self.leftovers.pop() if self.leftovers else None

    def register_result_handler(self, request_id: str, callback: Handler) -> None:
        self.handlers[request_id] = callback

    def add_request(self, input_ids: list[int], request_id: str, **more: Any) -> str | None:
        self.requests.append({"input_ids": input_ids, **more})
        self.batch_processor.cache.search_prefix_match(request_id, input_ids)
        return request_id if self.accepting else None

    def cancel_request(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def hand_over(self, *outputs: Output) -> None:
        ((name, handler),) = self.handlers.items()
        for one in outputs:
            handler(one)
            if one.is_finished():
                del self.handlers[name]


def engine(manager: Manager, **options: Any) -> BatchingEngine:
    constraints = GrammarCompiler(Path("nowhere"), VOCABULARY, (9,))
    return BatchingEngine(manager, SamplingDefaults({}, VOCABULARY), 64, constraints, **options)

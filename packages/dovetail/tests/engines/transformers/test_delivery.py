"""Deferred delivery: the library's outputs are delivered while the device computes."""

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.engines.transformers.child.delivery import DeferredDelivery, defer_delivery


class Library:
    """The parts of a manager that are called in turn, and a record of the calls."""

    def __init__(self, stream: Any = "a stream") -> None:
        self.done: list[Any] = []
        self.more = True
        self.batch_processor = SimpleNamespace(
            prepare_next_batch=self._prepare,
            inputs_and_outputs=SimpleNamespace(
                compute_stream=stream,
                retrieve_device_outputs=lambda: self.done.append("waits"),
            ),
        )
        self.output_router = SimpleNamespace(
            deliver=lambda output: self.done.append([output.name]),
            deliver_batch=lambda outputs: self.done.append([output.name for output in outputs]),
        )

    def _prepare(self) -> bool:
        self.done.append("prepares")
        return self.more

    def step(self, *outputs: Any) -> None:
        """Run one step as the library's loop does."""
        if self.batch_processor.prepare_next_batch():
            self.batch_processor.inputs_and_outputs.retrieve_device_outputs()
            self.output_router.deliver_batch(list(outputs))


def output(name: str, tokens: int) -> Any:
    return SimpleNamespace(name=name, generated_tokens=[1] * tokens)


@pytest.fixture
def library() -> Library:
    made = Library()
    assert isinstance(defer_delivery(made), DeferredDelivery)
    return made


def test_tokens_are_delivered_while_the_device_computes(library: Library) -> None:
    library.step(output("a", 2), output("b", 5))
    assert library.done == ["prepares", "waits"]
    library.step()
    assert library.done == ["prepares", "waits", "prepares", ["a", "b"], "waits"]


def test_first_token_is_not_deferred(library: Library) -> None:
    library.step(output("a", 2), output("new", 1), output("b", 3))
    assert library.done == ["prepares", "waits", ["new"]]
    library.more = False
    library.step()
    assert library.done[3:] == ["prepares", ["a", "b"]]


def test_tokens_are_delivered_when_there_is_no_next_step(library: Library) -> None:
    library.step(output("a", 2))
    library.more = False
    library.step()
    library.step()
    assert library.done == ["prepares", "waits", "prepares", ["a"], "prepares"]


def test_failure_is_delivered_after_earlier_tokens(library: Library) -> None:
    library.step(output("a", 2))
    library.output_router.deliver(output("broken", 2))
    assert library.done == ["prepares", "waits", ["a"], ["broken"]]


def test_without_a_device_delivery_is_not_deferred() -> None:
    library = Library(stream=None)
    assert defer_delivery(library) is None
    library.step(output("a", 2))
    assert library.done == ["prepares", "waits", ["a"]]


@pytest.mark.parametrize("missing", ["deliver_batch", "deliver"])
def test_unknown_library_is_not_hooked(missing: str) -> None:
    library = Library()
    delattr(library.output_router, missing)
    assert defer_delivery(library) is None

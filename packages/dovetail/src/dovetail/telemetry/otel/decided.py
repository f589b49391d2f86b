"""The SDK's machinery with what was decided before: a span's ids, and that it is recorded."""

from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from dovetail.net.trace_context import SpanRef


class PresetIdGenerator(IdGenerator):
    """Ids that were chosen before, for the next span; any for the others."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self._preset: SpanRef | None = None

    def new_ids(self, trace: str | None) -> tuple[str, str]:
        """The ids of a span to come: of its trace, where it has one, and its own."""
        made = trace or f"{self._random.generate_trace_id():032x}"
        return made, f"{self._random.generate_span_id():016x}"

    def preset(self, ref: SpanRef) -> None:
        """The span that is made next has these."""
        self._preset = ref

    def generate_trace_id(self) -> int:
        """Asked for first, and only where there is no parent."""
        if self._preset is None:
            return self._random.generate_trace_id()
        return int(self._preset.trace, 16)

    def generate_span_id(self) -> int:
        """Asked for once for every span."""
        ref, self._preset = self._preset, None
        return self._random.generate_span_id() if ref is None else int(ref.span, 16)


def make_tracer_provider(resource: Mapping[str, str]) -> tuple[TracerProvider, PresetIdGenerator]:
    """What makes spans, and what gives them their ids."""
    ids = PresetIdGenerator()
    provider = TracerProvider(
        sampler=ALWAYS_ON,
        resource=Resource.create(dict(resource)),
        shutdown_on_exit=False,
        id_generator=ids,
    )
    return provider, ids


def sampler_from_environment() -> Sampler:
    """As OTEL_TRACES_SAMPLER says; else all, but for what the client does not record itself."""
    return TracerProvider(shutdown_on_exit=False).sampler


def to_otel_context(ref: SpanRef | None, state: str = "") -> Context:
    """A context in which the client's span is the current one."""
    if ref is None:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if ref.sampled else TraceFlags.DEFAULT)
    found = SpanContext(
        int(ref.trace, 16),
        int(ref.span, 16),
        is_remote=True,
        trace_flags=flags,
        trace_state=TraceState.from_header([state] if state else []),
    )
    return set_span_in_context(NonRecordingSpan(found), Context())

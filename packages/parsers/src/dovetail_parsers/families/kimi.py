"""Kimi-VL and the first Kimi reasoning models: reasoning between triangles."""

from dovetail_parsers.family import Family
from dovetail_parsers.grammar import ReasoningFormat

FAMILY = Family(
    name="kimi",
    sample="◁think▷The user wants the weather.◁/think▷It is sunny.",
    reasoning_names=("kimi",),
    models={"*kimi-vl*": "kimi"},
    template_markers=("◁think▷",),
    reasoning=ReasoningFormat(openers=("◁think▷",), closers=("◁/think▷",)),
)

"""The renderers of a model: one for each way in which its template can be set.

A switch may change what a template does with a history (`clear_thinking`), so each setting is
probed by itself, once. Most sessions use one or two.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dovetail.models.loader import Model, Speech
from dovetail.models.template_probe import probe
from dovetail.models.template_probe.switches import SWITCHES
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.rendering_template import RenderError

_MOST = 32  # settings that are remembered


class Renderers:
    """Makes renderers when they are first asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._made: OrderedDict[tuple[bool, str], PromptRenderer] = OrderedDict()
        self.usual = self.of(True, model.switches)

    def of(self, tools: bool, switches: Mapping[str, Any]) -> PromptRenderer:
        """The renderer for requests with or without tools, under these switches."""
        model = self._model
        speech = model.tool_speech if tools else model.speech
        tools = speech is model.tool_speech
        key = (tools, _setting(speech, switches))
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._make(speech, switches, key[1])
            if len(self._made) > _MOST:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return known

    def _make(self, speech: Speech, switches: Mapping[str, Any], setting: str) -> PromptRenderer:
        model, facts = self._model, speech.facts
        if setting != _setting(speech, model.switches):
            # A setting that the template refuses: the request itself will tell its client so.
            with suppress(RenderError):
                facts = probe(speech.template, switches)
        return PromptRenderer(
            speech.template,
            facts,
            model.tokenizer,
            stops=model.stops,
            switches=switches,
            tool_parser=model.tool_parser,
            reasoning_parser=model.reasoning_parser,
        )


def _setting(speech: Speech, switches: Mapping[str, Any]) -> str:
    """The switches that the template reads. Numbers and words of others set no policy."""
    read = {k: v for k, v in switches.items() if k in speech.template.variables}
    plain = {k: v if _counts(k, v) else type(v).__name__ for k, v in read.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def _counts(name: str, value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and name in SWITCHES)

"""The renderers of a model: one for each way in which its template can be set.

A switch may change what a template does with a history (`clear_thinking`), so each setting is
probed by itself, once. Most sessions use one or two.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dovetail.models.loader import Model, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.models.template_probe.switches import HISTORY_SWITCHES
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.template import RenderError
from dovetail.storage.lru import LruCache

_MAX_RENDERERS = 32  # settings that are remembered


class RendererCache:
    """Makes renderers when they are first asked for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._renderers: LruCache[tuple[bool, str], PromptRenderer] = LruCache(_MAX_RENDERERS)
        self.default = self.get(True, model.switches)

    def get(self, tools: bool, switches: Mapping[str, Any]) -> PromptRenderer:
        """The renderer for requests with or without tools, under these switches."""
        model = self._model
        speech = model.tool_chat_template if tools else model.chat_template
        tools = speech is model.tool_chat_template
        key = (tools, _switch_key(speech, switches))
        known = self._renderers.get(key)
        if known is None:
            known = self._create(speech, switches, key[1])
            self._renderers.put(key, known)
        return known

    def _create(
        self, profile: ProbedTemplate, switches: Mapping[str, Any], switch_key: str
    ) -> PromptRenderer:
        model, facts = self._model, profile.profile
        if switch_key != _switch_key(profile, model.switches):
            # A setting that the template refuses: the request itself will tell its client so.
            with suppress(RenderError):
                facts = probe_template(profile.template, switches)
        return PromptRenderer(
            profile.template,
            facts,
            model.tokenizer,
            stops=model.stop_strings,
            switches=switches,
            tool_parser=model.tool_parser,
            reasoning_parser=model.reasoning_parser,
        )


def _switch_key(profile: ProbedTemplate, switches: Mapping[str, Any]) -> str:
    """The switches that the template reads. Numbers and words of others set no policy."""
    read = {k: v for k, v in switches.items() if k in profile.template.variables}
    plain = {k: v if _affects_policy(k, v) else type(v).__name__ for k, v in read.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def _affects_policy(name: str, value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and name in HISTORY_SWITCHES)

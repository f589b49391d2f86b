"""The prompt renderers of a model: one for each setting of its template's switches.

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

_MAX_RENDERERS = 32  # cached settings


class RendererCache:
    """Creates renderers on first use, and caches them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._renderers: LruCache[tuple[bool, str], PromptRenderer] = LruCache(_MAX_RENDERERS)
        self.default = self.get(True, model.switches)

    def get(self, tools: bool, switches: Mapping[str, Any]) -> PromptRenderer:
        """The renderer for requests with or without tools, under these switches."""
        model = self._model
        template = model.tool_chat_template if tools else model.chat_template
        tools = template is model.tool_chat_template
        key = (tools, _switch_key(template, switches))
        renderer = self._renderers.get(key)
        if renderer is None:
            renderer = self._create(template, switches, key[1])
            self._renderers.put(key, renderer)
        return renderer

    def _create(
        self, template: ProbedTemplate, switches: Mapping[str, Any], switch_key: str
    ) -> PromptRenderer:
        model, profile = self._model, template.profile
        if switch_key != _switch_key(template, model.switches):
            # If the template rejects the setting, rendering the request reports that.
            with suppress(RenderError):
                profile = probe_template(template.template, switches)
        return PromptRenderer(
            template.template,
            profile,
            model.tokenizer,
            stops=model.stop_strings,
            switches=switches,
            tool_parser=model.tool_parser,
            reasoning_parser=model.reasoning_parser,
        )


def _switch_key(template: ProbedTemplate, switches: Mapping[str, Any]) -> str:
    """The switches that the template reads. Numbers and other words do not change its policy."""
    read = {k: v for k, v in switches.items() if k in template.template.variables}
    plain = {k: v if _affects_policy(k, v) else type(v).__name__ for k, v in read.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def _affects_policy(name: str, value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and name in HISTORY_SWITCHES)

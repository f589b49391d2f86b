"""Load a model with its tokenizer, templates, parsers and limits, once at startup.

A model is a GGUF file or a folder in the Hugging Face layout, which must have at least
`tokenizer.json` (or another vocabulary) and `tokenizer_config.json`.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dovetail.models.files import ModelFiles, ModelFilesError, TemplateSource, read_model_files
from dovetail.models.self_test import SelfTestReport, TemplatePairing, run_self_test
from dovetail.models.stop_tokens import find_stop_tokens
from dovetail.models.template_probe import probe_template
from dovetail.models.template_probe.switches import HISTORY_SWITCHES
from dovetail.models.thinking import resolve_switches
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.tool_fallback import FALLBACK_TOOL_PARSER
from dovetail.prompt.turn_writer import TurnWriter
from dovetail.storage.lru import LruCache
from dovetail_model import Sampling, Thinking
from dovetail_parsers import markers, resolve_family
from dovetail_tokenizers import Tokenizer, load_tokenizer


class ModelLoadError(Exception):
    """The model cannot be served."""


@dataclass(frozen=True)
class ModelParsers:
    """The parsers of a model, and how they were selected: by flags, model id or template."""

    tool: str | None
    reasoning: str | None
    source: str


@dataclass(frozen=True)
class ProbedTemplate:
    """A template and its probed profile."""

    template: ChatTemplate
    profile: TemplateProfile


@dataclass(frozen=True)
class Model:
    """A model that can be served.

    `chat_template`: the template for requests without tools.
    `tool_chat_template`: the template for requests with tools; usually the same.
    `switches`: passed to the template if a request has no thinking settings.
    `stop_strings`: the texts of `stop_ids`.
    """

    name: str
    path: Path
    tokenizer: Tokenizer = field(repr=False)
    template_source: TemplateSource = field(repr=False)
    chat_template: ProbedTemplate = field(repr=False)
    tool_chat_template: ProbedTemplate = field(repr=False)
    parsers: ModelParsers
    switches: Mapping[str, Any]
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...]
    context_length: int | None
    sampling: Sampling

    @property
    def tool_parser(self) -> str | None:
        return self.parsers.tool

    @property
    def reasoning_parser(self) -> str | None:
        return self.parsers.reasoning

    @property
    def profile(self) -> TemplateProfile:
        """The profile of the template for requests with tools."""
        return self.tool_chat_template.profile

    @property
    def template(self) -> ChatTemplate:
        """The template for requests with tools."""
        return self.tool_chat_template.template

    @cached_property
    def self_test(self) -> SelfTestReport:
        """The result of the self-test: whether template and parsers match."""
        pair = (self.tool_parser, self.reasoning_parser)
        return run_self_test(TemplatePairing(self.template, self.profile, *pair, self.switches))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the operator about limitations of the model."""
        found = [
            *self.template_source.warnings,
            *(f"the template {w}" for w in self.profile.warnings),
        ]
        if not self.self_test.ok:
            found.append("template and parsers do not match: see the self-test")
        found += self.self_test.notes
        if not self.stop_ids:
            found.append("the model has no known stop token: responses end only at the token limit")
        return tuple(found)

    @cached_property
    def reasoning_end_ids(self) -> tuple[int, ...]:
        """The tokens that end reasoning; empty for models without reasoning."""
        if self.reasoning_parser is None:
            return ()
        writer = TurnWriter(self.tool_parser, self.reasoning_parser)
        return tuple(self.tokenizer.encode(writer.reasoning_end()))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of vocabulary, template and notation. Models with equal hashes can share turns."""
        token = self.tokenizer
        parts: list[object] = [token.size, sorted(token.controls.items())]
        parts += [token.bytes_of(id) for id in range(0, token.size, 97)]
        parts += [self.chat_template.template.text, self.tool_chat_template.template.text]
        parts += [self.tool_parser, self.reasoning_parser]
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def load_model(
    path: str | Path,
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    custom_template: Path | None = None,
    switches: Mapping[str, Any] | None = None,
) -> Model:
    """Load the model at a path. Raises `ModelLoadError` that names the cause.

    A parser is a name, "none", or None to select it by the model. `switches` are passed to the
    template with every request.
    """
    location = Path(path).expanduser()
    try:
        files = read_model_files(location, custom_template)
        parsers = _select_parsers(files, tool_parser, reasoning_parser)
        known = markers(parsers.tool, parsers.reasoning)
        tokenizer = load_tokenizer(
            location, controls=_control_token_names(files.template_source, known)
        )
    except (ModelFilesError, ValueError, OSError, ImportError) as error:
        raise ModelLoadError(f"{location}: {error}") from error
    default_switches = resolve_switches(
        Thinking(), TemplateProfile(), reasoning_parser=parsers.reasoning, server_switches=switches
    )
    chat_template = _profile_template(
        files.template_source.default, files.template_source, default_switches
    )
    tool_chat_template = chat_template
    if files.template_source.for_tools != files.template_source.default:
        tool_chat_template = _profile_template(
            files.template_source.for_tools, files.template_source, default_switches
        )
    if (
        parsers.tool is None
        and tool_parser is None
        and not tool_chat_template.profile.renders_tools
    ):
        parsers = ModelParsers(FALLBACK_TOOL_PARSER, parsers.reasoning, "fallback tool prompt")
    stops, stop_ids = _resolve_stops(files, tokenizer, tool_chat_template, parsers)
    return Model(
        name=files.name,
        path=location,
        tokenizer=tokenizer,
        template_source=files.template_source,
        chat_template=chat_template,
        tool_chat_template=tool_chat_template,
        parsers=parsers,
        switches=default_switches,
        stop_ids=stop_ids,
        stop_strings=stops,
        context_length=files.context_length,
        sampling=files.sampling,
    )


def _resolve_stops(
    files: ModelFiles, tokenizer: Tokenizer, template: ProbedTemplate, parsers: ModelParsers
) -> tuple[tuple[str, ...], frozenset[int]]:
    given = [id for id in files.stop_ids if tokenizer.bytes_of(id)]
    named = {*files.stop_strings, *(tokenizer.decode([id]) for id in given)}
    known = markers(parsers.tool, parsers.reasoning)
    found = find_stop_tokens(template.template, template.profile, tokenizer.controls, named, known)
    ids = frozenset(given) | {tokenizer.controls[stop] for stop in found}
    # The stop token of the model files comes first: scripted turns end with it.
    return tuple(
        sorted(found | named, key=lambda stop: (stop not in files.stop_strings, stop))
    ), ids


def _profile_template(
    text: str, source: TemplateSource, switches: Mapping[str, Any]
) -> ProbedTemplate:
    try:
        template = ChatTemplate(text, source.special_tokens)
        return ProbedTemplate(template, probe_template(template, switches))
    except TemplateError as error:
        raise ModelLoadError(f"the chat template of {source.origin} is invalid: {error}") from error
    except RenderError as error:
        raise ModelLoadError(
            f"the chat template of {source.origin} cannot render one user message: {error}"
        ) from error


def _select_parsers(files: ModelFiles, tool: str | None, reasoning: str | None) -> ModelParsers:
    """Select the parsers: as configured, else by model id, else by template."""
    family, source = None, "nothing"
    queries = [
        *((id, "model id") for id in files.family_ids),
        (files.template_source.for_tools, "template"),
    ]
    for query, kind in queries:
        found = resolve_family(query)
        if found is not None and found.tool_parser is not None:
            family, source = found, kind
            break
    own = family.reasoning_parser if family else None
    if tool is not None and reasoning is None:
        own = _matching_reasoning_parser(tool, own)
    source = source if tool is None and reasoning is None else "flags"
    tool = tool or (family.tool_parser if family else None)
    return ModelParsers(_none_if_disabled(tool), _none_if_disabled(reasoning or own), source)


def _matching_reasoning_parser(tool_parser: str, reasoning: str | None) -> str | None:
    """Return the parser of the model if it fits the tool parser, else that of the family."""
    try:
        markers(_none_if_disabled(tool_parser), reasoning)
    except ValueError:
        family = resolve_family(tool_parser)
        return family.reasoning_parser if family else None
    return reasoning


def _none_if_disabled(name: str | None) -> str | None:
    return None if name is None or name.lower() == "none" else name


_CONTROL_TOKEN = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,30}\]")


def _control_token_names(source: TemplateSource, known: frozenset[str]) -> frozenset[str]:
    """Return every text that may be a control token because a template or parser uses it."""
    texts = (*source.templates.values(), *known)
    return known.union(*(_CONTROL_TOKEN.findall(text) for text in texts))


_encode_switches = json.JSONEncoder(sort_keys=True, default=str).encode
_MAX_RENDERERS = 32  # combinations of settings


class RendererCache:
    """Creates renderers on first use and caches them."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._renderers: LruCache[tuple[bool, str], PromptRenderer] = LruCache(_MAX_RENDERERS)
        self.default = self.get(True, model.switches)

    def get(self, tools: bool, switches: Mapping[str, Any]) -> PromptRenderer:
        """Return the renderer for requests with or without tools and with these switches."""
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
            # If the template rejects the switches, rendering the request reports the error.
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
    """Return a key of the switches that affect the template's policy for earlier turns."""
    read = {k: v for k, v in switches.items() if k in template.template.variables}
    plain = {k: v if _affects_policy(k, v) else type(v).__name__ for k, v in read.items()}
    return _encode_switches(plain)


def _affects_policy(name: str, value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and name in HISTORY_SWITCHES)

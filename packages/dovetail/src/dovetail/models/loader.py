"""A model and all that belongs to it: tokenizer, templates, parsers, limits. Read once, at start.

A model is a folder as Hugging Face lays them out, of which `tokenizer.json` (or another vocabulary)
and `tokenizer_config.json` are enough, or a GGUF file.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from dovetail.models.files import Source, SourceError
from dovetail.models.model_files import ModelFiles, read_files
from dovetail.models.self_test import Pairing, SelfTest, self_test
from dovetail.models.stop_tokens import terminators
from dovetail.models.template_probe import probe
from dovetail.models.thinking import switches as thinking_switches
from dovetail.prompt.facts import TemplateProfile
from dovetail.prompt.rendering_template import ChatTemplate, RenderError
from dovetail.prompt.tool_fallback import FALLBACK_TOOL_PARSER
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import Sampling, Thinking
from dovetail_parsers import markers, resolve
from dovetail_tokenizers import Tokenizer, load


class CatalogError(Exception):
    """A model that cannot be served, and why."""


@dataclass(frozen=True)
class Parsers:
    """The parsers of a model, and what decided: flags, the model's id, its template."""

    tool: str | None
    reasoning: str | None
    by: str


@dataclass(frozen=True)
class Speech:
    """A template and what its probe found."""

    template: ChatTemplate
    facts: TemplateProfile


@dataclass(frozen=True)
class Model:
    """A model that can be spoken to.

    `speech` is for requests without tools, `tool_speech` for those with; mostly they are one.
    `switches` are what the template gets when a request says nothing about thinking.
    `stops` are the spellings of `stop_ids`.
    """

    name: str
    path: Path
    tokenizer: Tokenizer = field(repr=False)
    source: Source = field(repr=False)
    speech: Speech = field(repr=False)
    tool_speech: Speech = field(repr=False)
    parsers: Parsers
    switches: Mapping[str, Any]
    stop_ids: frozenset[int]
    stops: tuple[str, ...]
    context_length: int | None
    sampling: Sampling

    @property
    def tool_parser(self) -> str | None:
        return self.parsers.tool

    @property
    def reasoning_parser(self) -> str | None:
        return self.parsers.reasoning

    @property
    def facts(self) -> TemplateProfile:
        """The facts that hold in an agent's session."""
        return self.tool_speech.facts

    @property
    def template(self) -> ChatTemplate:
        """The template of an agent's session."""
        return self.tool_speech.template

    @cached_property
    def self_test(self) -> SelfTest:
        """Whether template and parsers fit."""
        pair = (self.tool_parser, self.reasoning_parser)
        return self_test(Pairing(self.template, self.facts, *pair, self.switches))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know."""
        found = [*self.source.warnings, *(f"the template {w}" for w in self.facts.warnings)]
        if not self.self_test.ok:
            found.append("template and parsers do not fit: see the self-test")
        found += self.self_test.notes
        if not self.stop_ids:
            found.append("no token is known to end a turn: answers end by length only")
        return tuple(found)

    @cached_property
    def thought_closing(self) -> tuple[int, ...]:
        """The tokens that end a thought; none for models that do not think."""
        if self.reasoning_parser is None:
            return ()
        writer = TurnWriter(self.tool_parser, self.reasoning_parser)
        return tuple(self.tokenizer.encode(writer.reasoning_end()))

    @cached_property
    def fingerprint(self) -> str:
        """Equal for models whose turns can be exchanged: one vocabulary, template and notation."""
        token = self.tokenizer
        parts: list[object] = [token.size, sorted(token.controls.items())]
        parts += [token.bytes_of(id) for id in range(0, token.size, 97)]
        parts += [self.speech.template.text, self.tool_speech.template.text]
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
    """The model at a path. Raises `CatalogError` with what is missing or does not fit.

    Parsers are given by name, as "none", or left to the model. `switches` are passed to the
    template with every request.
    """
    where = Path(path).expanduser()
    try:
        files = read_files(where, custom_template)
        parsers = _parsers(files, tool_parser, reasoning_parser)
        known = markers(parsers.tool, parsers.reasoning)
        tokenizer = load(where, controls=_control_names(files.source, known))
    except (SourceError, ValueError, OSError, ImportError) as error:
        raise CatalogError(f"{where}: {error}") from error
    usual = thinking_switches(
        Thinking(), TemplateProfile(), reasoning_parser=parsers.reasoning, server_switches=switches
    )
    speech = _speech(files.source.default, files.source, usual)
    tool_speech = speech
    if files.source.for_tools != files.source.default:
        tool_speech = _speech(files.source.for_tools, files.source, usual)
    if parsers.tool is None and tool_parser is None and not tool_speech.facts.renders_tools:
        parsers = Parsers(FALLBACK_TOOL_PARSER, parsers.reasoning, "fallback tool prompt")
    stops, stop_ids = _stops(files, tokenizer, tool_speech, parsers)
    return Model(
        name=files.name,
        path=where,
        tokenizer=tokenizer,
        source=files.source,
        speech=speech,
        tool_speech=tool_speech,
        parsers=parsers,
        switches=usual,
        stop_ids=stop_ids,
        stops=stops,
        context_length=files.context_length,
        sampling=files.sampling,
    )


def _stops(
    files: ModelFiles, tokenizer: Tokenizer, speech: Speech, parsers: Parsers
) -> tuple[tuple[str, ...], frozenset[int]]:
    given = [id for id in files.stop_ids if tokenizer.bytes_of(id)]
    named = {*files.stops, *(tokenizer.decode([id]) for id in given)}
    known = markers(parsers.tool, parsers.reasoning)
    found = terminators(speech.template, speech.facts, tokenizer.controls, named, known)
    ids = frozenset(given) | {tokenizer.controls[stop] for stop in found}
    # The model's own end of a turn comes first: a script's turns end with it.
    return tuple(sorted(found | named, key=lambda stop: (stop not in files.stops, stop))), ids


def _speech(text: str, source: Source, switches: Mapping[str, Any]) -> Speech:
    try:
        template = ChatTemplate(text, source.specials)
        return Speech(template, probe(template, switches))
    except TemplateError as error:
        raise CatalogError(f"the chat template of {source.origin} is broken: {error}") from error
    except RenderError as error:
        raise CatalogError(
            f"the chat template of {source.origin} cannot render one user message: {error}"
        ) from error


def _parsers(files: ModelFiles, tool: str | None, reasoning: str | None) -> Parsers:
    """The pair of parsers: as the user says, else by the model's id, else by its template."""
    family, by = None, "nothing"
    queries = [*((id, "model id") for id in files.ids), (files.source.for_tools, "template")]
    for query, kind in queries:
        found = resolve(query)
        if found is not None and found.tool_parser is not None:
            family, by = found, kind
            break
    own = family.reasoning_parser if family else None
    if tool is not None and reasoning is None:
        own = _partner(tool, own)
    by = by if tool is None and reasoning is None else "flags"
    tool = tool or (family.tool_parser if family else None)
    return Parsers(_given(tool), _given(reasoning or own), by)


def _partner(tool_parser: str, reasoning: str | None) -> str | None:
    """The reasoning parser beside a named tool parser: the model's if it fits, else the usual."""
    try:
        markers(_given(tool_parser), reasoning)
    except ValueError:
        family = resolve(tool_parser)
        return family.reasoning_parser if family else None
    return reasoning


def _given(name: str | None) -> str | None:
    return None if name is None or name.lower() == "none" else name


_TAG = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,30}\]")


def _control_names(source: Source, known: frozenset[str]) -> frozenset[str]:
    """Every spelling that may be a control token because a template or a parser relies on it."""
    texts = (*source.templates.values(), *known)
    return known.union(*(_TAG.findall(text) for text in texts))

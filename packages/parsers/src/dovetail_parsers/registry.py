"""Look up families by parser name, by model id, or by the markers in a chat template."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from dovetail_model import ReasoningRetention
from dovetail_parsers.families import FAMILIES
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Grammar
from dovetail_parsers.plugin import plugin_families


@cache
def families() -> tuple[Family, ...]:
    """Return every family, built-in or registered by a plugin."""
    return FAMILIES + plugin_families()


def resolve_family(query: str) -> Family | None:
    """Return the family of a parser name, a model id or the text of a chat template.

    For a model id or a template, `reasoning_parser` of the result is the one those models use.
    """
    if "{%" in query or "{{" in query:
        return _by_template(query)
    return _by_name(query) or _by_model(query)


def tool_family(name: str) -> Family:
    """Return the family of this tool parser."""
    return _find_named(name, _tool_names(), "tool")


def reasoning_family(name: str) -> Family:
    """Return the family of this reasoning parser."""
    return _find_named(name, _reasoning_names(), "reasoning")


@cache
def default_retention(tool: str | None, reasoning: str | None) -> ReasoningRetention:
    """Return which turns keep their reasoning by default with these parsers."""
    sides = (tool and tool_family(tool), reasoning and reasoning_family(reasoning))
    declared = (side.retention for side in sides if isinstance(side, Family))
    return next(filter(None, declared), "template")


@cache
def load_grammar(tool: str | None, reasoning: str | None) -> Grammar:
    """Combine a tool parser and a reasoning parser in one table. Rejects incompatible pairs."""
    tool_side = tool_family(tool) if tool else None
    reasoning_side = reasoning_family(reasoning) if reasoning else None
    unified = next(
        (f for f in (tool_side, reasoning_side) if f is not None and f.unified is not None), None
    )
    if unified is not None:
        if (tool_side or unified) is not unified or (reasoning_side or unified) is not unified:
            raise ValueError(
                f"tool parser {tool!r} and reasoning parser {reasoning!r} are incompatible: "
                f"{unified.name} writes reasoning and calls in one format. "
                f"Use {unified.tool_parser!r} with {unified.reasoning_parser!r}."
            )
        return Grammar(unified.name, unified.tools, unified.reasoning)
    name = "+".join(f.name for f in (tool_side, reasoning_side) if f is not None) or "plain"
    return Grammar(
        name,
        tool_side.tools if tool_side else None,
        reasoning_side.reasoning if reasoning_side else None,
    )


def normalize_name(name: str) -> str:
    """Normalize a name: names of projects differ only in case and hyphens."""
    return name.strip().lower().replace("-", "_")


@cache
def _tool_names() -> Mapping[str, Family]:
    return {normalize_name(name): family for family in families() for name in family.tool_names}


@cache
def _reasoning_names() -> Mapping[str, Family]:
    return {
        normalize_name(name): family for family in families() for name in family.reasoning_names
    }


def _find_named(name: str, names: Mapping[str, Family], kind: str) -> Family:
    family = names.get(normalize_name(name))
    if family is None:
        close = difflib.get_close_matches(normalize_name(name), names, n=3)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"unknown {kind} parser {name!r}.{hint} Known: {', '.join(sorted(names))}")
    return family


def _by_name(name: str) -> Family | None:
    return _tool_names().get(normalize_name(name)) or _reasoning_names().get(normalize_name(name))


def _by_model(model: str) -> Family | None:
    """Find the family by the most specific matching pattern, with or without the organisation."""
    folded = model.lower()
    best: tuple[int, Family, str | None] | None = None
    for family in families():
        for pattern, reasoning in family.models.items():
            if fnmatchcase(folded, pattern) and (best is None or len(pattern) > best[0]):
                best = (len(pattern), family, reasoning)
    return None if best is None else replace(best[1], pairs_with=best[2])


def _by_template(template: str) -> Family | None:
    """Find the family by the markers in the template; of several, the one with the most."""
    tools = _best_marked(template, [f for f in families() if f.tool_names])
    candidates = [
        f
        for f in families()
        if f.reasoning_names and _contains_all(f.reasoning_template_markers, template)
    ]
    reasoner = _best_marked(template, candidates)
    if tools is None or tools.unified is not None:
        return tools or reasoner
    own = reasoning_family(tools.pairs_with).reasoning if tools.pairs_with else None
    if own is not None and any(closer in template for closer in own.closers):
        return tools
    return replace(tools, pairs_with=reasoner.reasoning_parser if reasoner else None)


def _contains_all(marks: tuple[str, ...], template: str) -> bool:
    return all(mark in template for mark in marks)


def _best_marked(template: str, candidates: list[Family]) -> Family | None:
    marked = [
        f for f in candidates if f.template_markers and _contains_all(f.template_markers, template)
    ]
    return max(marked, key=lambda f: sum(map(len, f.template_markers)), default=None)

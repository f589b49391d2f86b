"""Templates prepared for splicing, without a model."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from real_models import TEMPLATES

from dovetail.models.stop_tokens import KNOWN_STOP_TOKENS
from dovetail.models.template_probe import probe_template
from dovetail.prompt.partial_render import PartialRenderer
from dovetail.prompt.splice import Splicer, StopTokenMatcher
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail_parsers import markers, resolve_family

PATHS = sorted(TEMPLATES.glob("*.jinja"))
NAMES = [path.stem for path in PATHS]
at_hand = pytest.mark.skipif(not PATHS, reason="no folder of chat templates is available")

SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
#: As with a reasoning parser. The last two are variables that one template requires.
THINKING: dict[str, Any] = {"enable_thinking": True, "functions": "[]", "datetime": "noon"}
_TAG = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,30}\]")
#: Ends of turns that only the files of the models define.
_ENDS = {
    "tencent-Hy3": "<｜hy_eos:opensource｜>",
    "microsoft-Phi-3.5-mini-instruct": "<|end|>",
    "unsloth-Apriel-1.5": "<|end|>",
}


@cache  # compiling a template takes longer than most tests of it
def chat_template(name: str) -> ChatTemplate:
    return ChatTemplate(Path(TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), SPECIALS)


@cache
def facts_of(name: str) -> TemplateProfile:
    return probe_template(chat_template(name), THINKING)


def parsers_of(name: str) -> tuple[str | None, str | None]:
    """Return the parsers of the template's family."""
    family = resolve_family(chat_template(name).text)
    return (family.tool_parser, family.reasoning_parser) if family else (None, None)


def controls_of(name: str) -> tuple[list[str], list[str]]:
    """Return the stop tokens and all control tokens: every tag of the template is one."""
    text = chat_template(name).text
    ends = [end for end in sorted(KNOWN_STOP_TOKENS) if end in text]
    ends += ["<EOS>", *filter(None, [_ENDS.get(name)])]
    return ends, sorted({*_TAG.findall(text), *ends})


@cache
def splicer_of(name: str) -> Splicer:
    ends, controls = controls_of(name)
    stops = StopTokenMatcher(ends, controls, markers(*parsers_of(name)))
    return Splicer(chat_template(name), facts_of(name), stops, THINKING)


@cache
def resumption_of(name: str) -> PartialRenderer:
    return PartialRenderer(chat_template(name), facts_of(name), THINKING)

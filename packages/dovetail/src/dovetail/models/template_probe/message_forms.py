"""What a template takes: the forms of content, arguments and ids, and what it shows of a turn."""

import json
from dataclasses import replace
from typing import Any, Literal

from dovetail.models.template_probe.context import Bench, Message
from dovetail.prompt.facts import MessageHandling
from dovetail.prompt.rendering_template import RenderError

_CONTENT: tuple[Literal["string", "parts"], ...] = ("string", "parts")


_ARGUMENTS: tuple[Literal["object", "string"], ...] = ("object", "string")


def settle(bench: Bench) -> Bench:
    """The bench with the forms of content and arguments that this template takes.

    Raises `RenderError` for a template that cannot show one user message.
    """
    bench = _readable(bench)
    if bench.render([bench.user()]) is None:
        bench = replace(bench, tools=())
    arguments, wants_null = _arguments(bench)
    return replace(bench, arguments=arguments, wants_null=wants_null)


def shown_parts(bench: Bench) -> dict[str, Any]:
    """What the template shows of tools, calls and results."""
    marks = bench.marks
    ask = bench.user()
    offered = bench.render([ask]) or bench.render([bench.system(), ask]) or ""
    one = bench.render([ask, bench.calls("call"), bench.result("call")]) or ""
    two = bench.render(
        [ask, bench.calls("call", "other"), bench.result("call"), bench.result("other")]
    )
    beside = bench.render([ask, bench.calls("call", text="beside"), bench.result("call")]) or ""
    return {
        "renders_tools": marks["tool"] in offered,
        "renders_calls": _shows_call(bench, one),
        "renders_results": marks["result of call"] in one,
        "many_calls": two is not None and marks["call"] in two and marks["other"] in two,
        "text_with_calls": marks["beside"] in beside and marks["call"] in beside,
        "wants_null": bench.wants_null,
    }


def accepted(bench: Bench) -> dict[str, Any]:
    """Which odd messages the template takes, and what it does with them."""
    return {
        "null_content": _null_content(bench),
        "trims": _trims(bench),
        "system": _kept(bench, [bench.system(), bench.user()], "system"),
        "system_inside": _system_inside(bench),
        "developer": _kept(bench, [bench.system(role="developer"), bench.user()], "system"),
        "consecutive_users": _kept(bench, [bench.user(), bench.user("more")], "more") == "kept",
    }


def call_ids(bench: Bench) -> tuple[Literal["any", "nine", "kimi"], bool]:
    """Which ids the template wants, and whether it shows them to the model.

    Where the id is all that tells the model which tool a call or a result belongs to, it must
    be one that says so, as in the family of Kimi.
    """
    one = [bench.user(), bench.calls("call"), bench.result("call")]
    text = bench.render(one, tools=False) or bench.render(one)
    if text is None:
        return "any", False
    own, other = bench.call_id("call"), bench.call_id("another call")
    odd = json.loads(json.dumps(one).replace(own, "call_0123456789abcdef"))
    if bench.render(odd) is None:
        return "nine", own in text
    tool = bench.marks["tool"]
    around, _, behind = text.rpartition(bench.marks["call"])
    called = around.rpartition(bench.marks["user"])[2]
    strange = bench.render([*one[:2], {**one[2], "tool_call_id": other}], tools=False) or ""
    unnamed = (own in called and tool not in called) or (other in strange and tool not in behind)
    return ("kimi" if unnamed else "any"), own in text


def _readable(bench: Bench) -> Bench:
    """The first form in which one user message is shown: a string or parts, bare or with tools."""
    for needs_tools in (False, True):
        for form in _CONTENT:
            tried = replace(bench, content=form, needs_tools=needs_tools)
            if bench.marks["user"] in (tried.render([tried.user()], tools=False) or ""):
                return tried
    bench.template.render([bench.user()], switches=bench.switches)
    raise RenderError("the chat template does not show the text of a user message")


def _arguments(bench: Bench) -> tuple[Literal["object", "string"], bool]:
    """The form whose values come out as they went in: not as Python, not escaped twice.

    A few templates look at calls only where the content is null: the second value says so.
    """
    values = {"x": bench.marks["call"]}
    spoiled = {"object": str(values), "string": json.dumps(json.dumps(values))[1:-1]}
    for wants_null in (False, True):
        for form in _ARGUMENTS:
            text = _shown_call(replace(bench, arguments=form, wants_null=wants_null))
            if bench.marks["call"] in text and spoiled[form] not in text:
                return form, wants_null
    return "object", False


def _shown_call(bench: Bench) -> str:
    turns = [bench.user(), bench.calls("call")]
    return bench.render([*turns, bench.result("call")]) or bench.render(turns) or ""


def _shows_call(bench: Bench, text: str) -> bool:
    named = bench.marks["tool"] in text or bench.call_id("call") in text
    return named and bench.marks["call"] in text


def _null_content(bench: Bench) -> bool:
    """Whether None stands for no text. Some refuse it, some print it."""
    for turn, following in (
        (bench.calls("call"), bench.result("call")),
        (bench.says("answer"), bench.user("more")),
    ):
        empty = bench.render([bench.user(), {**turn, "content": ""}, following])
        null = bench.render([bench.user(), {**turn, "content": None}, following])
        if empty is not None or null is not None:
            return null is not None and null.count("None") == (empty or "").count("None")
    return False


def _trims(bench: Bench) -> bool:
    """Whether white space around an assistant's text is lost."""
    said = bench.says("answer")
    framed = f" \n {bench.marks['answer']} \n "
    said["content"] = framed if bench.content == "string" else [{"type": "text", "text": framed}]
    text = bench.render([bench.user(), said, bench.user("more")], tools=False)
    return text is not None and framed not in text


def _system_inside(bench: Bench) -> MessageHandling:
    """The worst that happens to a system message behind a user turn or a tool result."""
    asked = [bench.user(), bench.says("answer")]
    called = [bench.user(), bench.calls("call"), bench.result("call")]
    places = [
        ([*asked, bench.system(), bench.user("more")], "answer"),
        ([*asked, bench.user("more"), bench.system()], "more"),
    ]
    if bench.render(called) is not None:
        places.append(([*called, bench.system()], "result of call"))
    found = [_kept(bench, turns, "system", behind=behind) for turns, behind in places]
    order: tuple[MessageHandling, ...] = ("refused", "dropped", "kept")
    return min(found, key=order.index)


def _kept(bench: Bench, messages: list[Message], part: str, behind: str = "") -> MessageHandling:
    """What became of a message. One that was moved ahead of its place counts as dropped."""
    text = bench.render(messages)
    if text is None:
        return "refused"
    at = text.find(bench.marks[part])
    return "kept" if at >= 0 and (not behind or at > text.find(bench.marks[behind])) else "dropped"

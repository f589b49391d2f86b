"""Probe the input that a template accepts (content, arguments, ids) and what it renders."""

import json
from dataclasses import replace
from typing import Any, Literal

from dovetail.models.template_probe.context import ProbeContext, ProbeMessage
from dovetail.prompt.template import MessageHandling, RenderError

_CONTENT_FORMS: tuple[Literal["string", "parts"], ...] = ("string", "parts")


_ARGUMENT_FORMS: tuple[Literal["object", "string"], ...] = ("object", "string")


def detect_forms(context: ProbeContext) -> ProbeContext:
    """Return the context with the forms of content and arguments that the template accepts.

    Raises `RenderError` for a template that cannot render one user message.
    """
    context = _detect_content_form(context)
    if context.render([context.user_message()]) is None:
        context = replace(context, tools=())
    arguments, wants_null = _detect_argument_form(context)
    return replace(context, arguments=arguments, requires_null_content=wants_null)


def detect_rendered_parts(context: ProbeContext) -> dict[str, Any]:
    """Detect which of tools, calls and results the template renders."""
    marks = context.marks
    user = context.user_message()
    tools_text = context.render([user]) or context.render([context.system_message(), user]) or ""
    one = context.render([user, context.call_message("call"), context.result_message("call")]) or ""
    two = context.render(
        [
            user,
            context.call_message("call", "other"),
            context.result_message("call"),
            context.result_message("other"),
        ]
    )
    with_text = (
        context.render(
            [
                user,
                context.call_message("call", text="text with call"),
                context.result_message("call"),
            ]
        )
        or ""
    )
    return {
        "renders_tools": marks["tool"] in tools_text,
        "renders_calls": _contains_call(context, one),
        "renders_results": marks["result of call"] in one,
        "many_calls": two is not None and marks["call"] in two and marks["other"] in two,
        "text_with_calls": marks["text with call"] in with_text and marks["call"] in with_text,
        "wants_null": context.requires_null_content,
    }


def detect_accepted_messages(context: ProbeContext) -> dict[str, Any]:
    """Detect which unusual messages the template accepts, and how it handles them."""
    return {
        "null_content": _accepts_null_content(context),
        "trims": _trims_content(context),
        "system": _message_handling(
            context, [context.system_message(), context.user_message()], "system"
        ),
        "system_inside": _detect_inner_system(context),
        "developer": _message_handling(
            context, [context.system_message(role="developer"), context.user_message()], "system"
        ),
        "consecutive_users": _message_handling(
            context, [context.user_message(), context.user_message("more")], "more"
        )
        == "kept",
    }


def detect_call_ids(context: ProbeContext) -> tuple[Literal["any", "nine", "kimi"], bool]:
    """Detect which ids the template expects, and whether it renders them.

    If only the id identifies the tool of a call or a result, it must contain the tool name, as in
    the Kimi family.
    """
    one = [context.user_message(), context.call_message("call"), context.result_message("call")]
    text = context.render(one, tools=False) or context.render(one)
    if text is None:
        return "any", False
    own, other = context.call_id("call"), context.call_id("another call")
    odd = json.loads(json.dumps(one).replace(own, "call_0123456789abcdef"))
    if context.render(odd) is None:
        return "nine", own in text
    tool = context.marks["tool"]
    around, _, behind = text.rpartition(context.marks["call"])
    called = around.rpartition(context.marks["user"])[2]
    strange = context.render([*one[:2], {**one[2], "tool_call_id": other}], tools=False) or ""
    unnamed = (own in called and tool not in called) or (other in strange and tool not in behind)
    return ("kimi" if unnamed else "any"), own in text


def _detect_content_form(context: ProbeContext) -> ProbeContext:
    """Find the first form that renders a user message: string or parts, then with tools."""
    for needs_tools in (False, True):
        for form in _CONTENT_FORMS:
            tried = replace(context, content=form, needs_tools=needs_tools)
            if context.marks["user"] in (tried.render([tried.user_message()], tools=False) or ""):
                return tried
    context.template.render([context.user_message()], switches=context.switches)
    raise RenderError("the chat template does not render the text of a user message")


def _detect_argument_form(context: ProbeContext) -> tuple[Literal["object", "string"], bool]:
    """Find the form whose values are rendered unchanged: not as Python, not escaped twice.

    A few templates render calls only if the content is null: then the second value is True.
    """
    values = {"x": context.marks["call"]}
    spoiled = {"object": str(values), "string": json.dumps(json.dumps(values))[1:-1]}
    for wants_null in (False, True):
        for form in _ARGUMENT_FORMS:
            text = _render_call(replace(context, arguments=form, requires_null_content=wants_null))
            if context.marks["call"] in text and spoiled[form] not in text:
                return form, wants_null
    return "object", False


def _render_call(context: ProbeContext) -> str:
    turns = [context.user_message(), context.call_message("call")]
    return context.render([*turns, context.result_message("call")]) or context.render(turns) or ""


def _contains_call(context: ProbeContext, text: str) -> bool:
    named = context.marks["tool"] in text or context.call_id("call") in text
    return named and context.marks["call"] in text


def _accepts_null_content(context: ProbeContext) -> bool:
    """Return whether None means no text. Some templates reject it, others print it."""
    for turn, following in (
        (context.call_message("call"), context.result_message("call")),
        (context.assistant_message("answer"), context.user_message("more")),
    ):
        empty = context.render([context.user_message(), {**turn, "content": ""}, following])
        null = context.render([context.user_message(), {**turn, "content": None}, following])
        if empty is not None or null is not None:
            return null is not None and null.count("None") == (empty or "").count("None")
    return False


def _trims_content(context: ProbeContext) -> bool:
    """Return whether whitespace around assistant text is removed."""
    message = context.assistant_message("answer")
    framed = f" \n {context.marks['answer']} \n "
    message["content"] = (
        framed if context.content == "string" else [{"type": "text", "text": framed}]
    )
    text = context.render(
        [context.user_message(), message, context.user_message("more")], tools=False
    )
    return text is not None and framed not in text


def _detect_inner_system(context: ProbeContext) -> MessageHandling:
    """Return the worst handling of a system message after a user turn or a tool result."""
    plain = [context.user_message(), context.assistant_message("answer")]
    called = [context.user_message(), context.call_message("call"), context.result_message("call")]
    places = [
        ([*plain, context.system_message(), context.user_message("more")], "answer"),
        ([*plain, context.user_message("more"), context.system_message()], "more"),
    ]
    if context.render(called) is not None:
        places.append(([*called, context.system_message()], "result of call"))
    found = [_message_handling(context, turns, "system", behind=behind) for turns, behind in places]
    order: tuple[MessageHandling, ...] = ("refused", "dropped", "kept")
    return min(found, key=order.index)


def _message_handling(
    context: ProbeContext, messages: list[ProbeMessage], part: str, behind: str = ""
) -> MessageHandling:
    """Return how a message is handled. A message that is moved forward counts as dropped."""
    text = context.render(messages)
    if text is None:
        return "refused"
    at = text.find(context.marks[part])
    return (
        "kept" if at >= 0 and (not behind or at > text.find(context.marks[behind])) else "dropped"
    )

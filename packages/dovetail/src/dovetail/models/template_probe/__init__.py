"""Probe a chat template: render small conversations to find its capabilities."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.models.template_probe.context import ProbeContext, create_context
from dovetail.models.template_probe.history_policy import (
    CONTENT_PARTS,
    can_interleave,
    count_reasoning,
    detect_reasoning_fields,
    drops_reasoning_at_final,
    keeps_plain_history,
    keeps_prompt,
    keeps_reasoning_at_system,
    keeps_reasoning_at_user,
    keeps_reasoning_in_loop,
)
from dovetail.models.template_probe.message_forms import (
    detect_accepted_messages,
    detect_call_ids,
    detect_forms,
    detect_rendered_parts,
)
from dovetail.models.template_probe.switches import (
    detect_budget_switch,
    detect_effort,
    detect_keep_switches,
    detect_reasoning_opener,
    detect_thinking_switches,
)
from dovetail.prompt.template import ChatTemplate, TemplateProfile

__all__ = ["probe_template"]


def collect_warnings(profile: TemplateProfile) -> tuple[str, ...]:
    """Describe each limitation of a template."""
    found = {
        "does not render tools: they are described in the system message": (
            not profile.renders_tools
        ),
        "does not render calls of earlier turns: they become text": not profile.renders_calls,
        "does not render tool results: they become text": not profile.renders_results,
        "renders at most one call per turn": profile.renders_calls and not profile.many_calls,
        "cannot render text and calls in one turn": profile.renders_calls
        and not profile.text_with_calls,
        "does not render system messages": profile.system != "kept",
        "rewrites earlier turns at the next user message: they are prefilled again": (
            not profile.keeps_plain
        ),
        "rewrites the prompt of a turn when the next turn follows": not profile.keeps_prompt,
        "drops reasoning even in a running tool loop": (
            bool(profile.reasoning_fields) and not profile.keeps_in_loop
        ),
    }
    return tuple(text for text, applies in found.items() if applies)


def probe_template(
    template: ChatTemplate, switches: Mapping[str, Any] | None = None
) -> TemplateProfile:
    """Find the profile of a template with these switches.

    Raises `RenderError` only for a template that cannot render one user message.
    """
    context = detect_forms(create_context(template, switches or {}))
    thinking_switches = detect_thinking_switches(context)
    on = thinking_switches.get(True, {})
    fields = detect_reasoning_fields(context, on)
    in_parts = not fields and count_reasoning(context, (CONTENT_PARTS,), on) == 1
    context = replace(
        context,
        reasoning_field=fields[0] if fields else CONTENT_PARTS if in_parts else "",
    )
    ids, shows_ids = detect_call_ids(context)
    effort_switch, efforts = detect_effort(context, on)
    opener = detect_reasoning_opener(context)
    profile = TemplateProfile(
        **detect_rendered_parts(context),
        **detect_accepted_messages(context),
        arguments=context.arguments,
        content=context.content,
        reasoning_fields=fields,
        thinking_parts=in_parts,
        call_ids=ids,
        shows_ids=shows_ids,
        reasoning_opener=opener,
        keeps_in_loop=keeps_reasoning_in_loop(context),
        keeps_at_user=keeps_reasoning_at_user(context),
        keeps_at_system=keeps_reasoning_at_system(context),
        keeps_without_tools=keeps_reasoning_at_user(context, tools=False)
        and keeps_plain_history(context, tools=False),
        keeps_plain=keeps_plain_history(context),
        keeps_prompt=keeps_prompt(context, opener),
        drops_at_final=drops_reasoning_at_final(context),
        keep_switches=detect_keep_switches(context, on),
        thinking_switches=thinking_switches,
        effort_switch=effort_switch,
        efforts=efforts,
        budget_switch=detect_budget_switch(context),
        interleaves=can_interleave(context),
        text_with_reasoning=_accepts_text_with_reasoning(context),
    )
    return replace(profile, warnings=collect_warnings(profile))


def _accepts_text_with_reasoning(context: ProbeContext) -> bool:
    """Return whether a turn with calls may have both reasoning and text."""
    turn = context.call_message("call", text="text", reasoning="reasoning")
    return (
        context.render([context.user_message(), turn, context.result_message("call")]) is not None
    )

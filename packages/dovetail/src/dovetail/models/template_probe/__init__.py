"""The probe of a chat template: what it can do, found out by rendering small conversations."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.models.template_probe import (
    history_policy,
    message_forms,
)
from dovetail.models.template_probe import (
    switches as probed_switches,
)
from dovetail.models.template_probe.context import ProbeContext, create_context
from dovetail.prompt.template import ChatTemplate, TemplateProfile

__all__ = ["probe_template"]


def collect_warnings(profile: TemplateProfile) -> tuple[str, ...]:
    """One sentence for each fact that costs something."""
    found = {
        "does not show tools: they are described in the system message": (
            not profile.renders_tools
        ),
        "does not show calls of earlier turns: they are written as text": not profile.renders_calls,
        "does not show tool results: they are written as text": not profile.renders_results,
        "shows one call a turn at most": profile.renders_calls and not profile.many_calls,
        "cannot show text and calls in one turn": profile.renders_calls
        and not profile.text_with_calls,
        "has no place for a system message": profile.system != "kept",
        "rewrites earlier turns when the user speaks again": not profile.keeps_plain,
        "rewrites the prompt before a turn once the turn is history": not profile.keeps_prompt,
        "drops thoughts even in a running tool loop": (
            bool(profile.reasoning_fields) and not profile.keeps_in_loop
        ),
    }
    return tuple(text for text, applies in found.items() if applies)


def probe_template(
    template: ChatTemplate, switches: Mapping[str, Any] | None = None
) -> TemplateProfile:
    """The facts of a template, with the given switches set.

    Raises `RenderError` only for a template that cannot show one user message.
    """
    table = message_forms.detect_forms(create_context(template, switches or {}))
    turning = probed_switches.detect_thinking_switches(table)
    on = turning.get(True, {})
    fields = history_policy.detect_reasoning_fields(table, on)
    in_parts = (
        not fields
        and history_policy.count_reasoning(table, (history_policy.CONTENT_PARTS,), on) == 1
    )
    table = replace(
        table,
        reasoning_field=fields[0] if fields else history_policy.CONTENT_PARTS if in_parts else "",
    )
    ids, shows_ids = message_forms.detect_call_ids(table)
    effort_switch, efforts = probed_switches.detect_effort(table, on)
    opener = probed_switches.detect_reasoning_opener(table)
    facts = TemplateProfile(
        **message_forms.detect_rendered_parts(table),
        **message_forms.detect_accepted_messages(table),
        arguments=table.arguments,
        content=table.content,
        reasoning_fields=fields,
        thinking_parts=in_parts,
        call_ids=ids,
        shows_ids=shows_ids,
        opens_thought=opener,
        keeps_in_loop=history_policy.keeps_reasoning_in_loop(table),
        keeps_at_user=history_policy.keeps_reasoning_at_user(table),
        keeps_without_tools=history_policy.keeps_reasoning_at_user(table, tools=False)
        and history_policy.keeps_plain_history(table, tools=False),
        keeps_plain=history_policy.keeps_plain_history(table),
        keeps_prompt=history_policy.keeps_prompt(table, opener),
        drops_at_final=history_policy.drops_reasoning_at_final(table),
        keep_switches=probed_switches.detect_keep_switches(table, on),
        thinking_switches=turning,
        effort_switch=effort_switch,
        efforts=efforts,
        budget_switch=probed_switches.detect_budget_switch(table),
        interleaves=history_policy.can_interleave(table),
        text_beside_thought=_accepts_text_with_reasoning(table),
    )
    return replace(facts, warnings=collect_warnings(facts))


def _accepts_text_with_reasoning(table: ProbeContext) -> bool:
    """Whether a turn with calls may have both a thought and text."""
    turn = table.call_message("call", text="text", reasoning="thought")
    return table.render([table.user_message(), turn, table.result_message("call")]) is not None

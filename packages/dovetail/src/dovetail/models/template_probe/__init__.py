"""The probe of a chat template: what it can do, found out by rendering small conversations."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.models.template_probe import history_policy as policy
from dovetail.models.template_probe import message_forms as forms
from dovetail.models.template_probe import switches as thoughts
from dovetail.models.template_probe.context import Bench, bench
from dovetail.models.template_probe.warnings import warnings
from dovetail.prompt.facts import TemplateProfile
from dovetail.prompt.rendering_template import ChatTemplate

__all__ = ["probe"]


def probe(template: ChatTemplate, switches: Mapping[str, Any] | None = None) -> TemplateProfile:
    """The facts of a template, with the given switches set.

    Raises `RenderError` only for a template that cannot show one user message.
    """
    table = forms.settle(bench(template, switches or {}))
    turning = thoughts.thinking_switches(table)
    on = turning.get(True, {})
    fields = policy.reasoning_fields(table, on)
    in_parts = not fields and policy.shows(table, (policy.PARTS,), on) == 1
    table = replace(table, field=fields[0] if fields else policy.PARTS if in_parts else "")
    ids, shows_ids = forms.call_ids(table)
    effort_switch, efforts = thoughts.effort(table, on)
    opener = thoughts.opens_thought(table)
    facts = TemplateProfile(
        **forms.shown_parts(table),
        **forms.accepted(table),
        arguments=table.arguments,
        content=table.content,
        reasoning_fields=fields,
        thinking_parts=in_parts,
        call_ids=ids,
        shows_ids=shows_ids,
        opens_thought=opener,
        keeps_in_loop=policy.keeps_in_loop(table),
        keeps_at_user=policy.keeps_at_user(table),
        keeps_without_tools=policy.keeps_at_user(table, tools=False)
        and policy.keeps_plain(table, tools=False),
        keeps_plain=policy.keeps_plain(table),
        keeps_prompt=policy.keeps_prompt(table, opener),
        drops_at_final=policy.drops_at_final(table),
        keep_switches=thoughts.keep_switches(table, on),
        thinking_switches=turning,
        effort_switch=effort_switch,
        efforts=efforts,
        budget_switch=thoughts.budget_switch(table),
        interleaves=policy.interleaves(table),
        text_beside_thought=_takes_text_beside_thought(table),
    )
    return replace(facts, warnings=warnings(facts))


def _takes_text_beside_thought(table: Bench) -> bool:
    """Whether a turn with calls may have both a thought and text."""
    turn = table.calls("call", text="text", thought="thought")
    return table.render([table.user(), turn, table.result("call")]) is not None

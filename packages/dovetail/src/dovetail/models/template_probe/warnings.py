"""What users should know about a template before they serve with it."""

from dovetail.prompt.facts import TemplateProfile


def warnings(facts: TemplateProfile) -> tuple[str, ...]:
    """One sentence for each fact that costs something."""
    found = {
        "does not show tools: they are described in the system message": (not facts.renders_tools),
        "does not show calls of earlier turns: they are written as text": not facts.renders_calls,
        "does not show tool results: they are written as text": not facts.renders_results,
        "shows one call a turn at most": facts.renders_calls and not facts.many_calls,
        "cannot show text and calls in one turn": facts.renders_calls and not facts.text_with_calls,
        "has no place for a system message": facts.system != "kept",
        "rewrites earlier turns when the user speaks again": not facts.keeps_plain,
        "rewrites the prompt before a turn once the turn is history": not facts.keeps_prompt,
        "drops thoughts even in a running tool loop": (
            bool(facts.reasoning_fields) and not facts.keeps_in_loop
        ),
    }
    return tuple(text for text, applies in found.items() if applies)

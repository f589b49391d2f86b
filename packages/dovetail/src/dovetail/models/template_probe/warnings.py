"""What users should know about a template before they serve with it."""

from dovetail.prompt.template import TemplateProfile


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

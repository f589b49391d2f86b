"""How hard a model can be asked to think, in the words of Codex."""

from dovetail.pipeline.registry import TokenModel
from dovetail.prompt.template import RenderError
from dovetail_model import Thinking

#: What a user reads beside each level when choosing one.
LEVEL_DESCRIPTIONS = {
    "none": "Answers without thinking",
    "minimal": "Hardly thinks",
    "low": "Thinks briefly",
    "medium": "Thinks as long as the task seems to need",
    "high": "Thinks longer, for harder problems",
    "xhigh": "Thinks much longer, for the hardest problems",
    "max": "Thinks as long as it can",
}
_DEFAULT_LEVEL = "medium"


def supported_levels(served: TokenModel) -> tuple[str, ...]:
    """The levels that make a difference; none where the template leaves no choice.

    A template that only turns thinking on and off has two: `none` and the usual one.
    """
    facts = served.model.facts
    if served.model.reasoning_parser is None:
        return ()
    harder = [level for level in facts.efforts if level != "none"]
    if not facts.thinking_switches:
        return facts.efforts
    return ("none", *(harder or [_DEFAULT_LEVEL]))


def default_level(served: TokenModel, supported: tuple[str, ...]) -> str | None:
    """The level that a request which says nothing has already: Codex names one in every request.

    Naming another would overrule what the operator or the template's author chose.
    """
    if not supported:
        return None
    silent = _render_probe(served, Thinking())
    for level in supported:
        asked = Thinking(enabled=level != "none", effort=level)
        if silent is not None and _render_probe(served, asked) == silent:
            return level
    return _DEFAULT_LEVEL if _DEFAULT_LEVEL in supported else supported[len(supported) // 2]


def _render_probe(served: TokenModel, thinking: Thinking) -> str | None:
    """A short prompt under what is asked about thoughts; None if the template refuses it."""
    model = served.model
    text = "x" if model.facts.content == "string" else [{"type": "text", "text": "x"}]
    switches = served.preparer.template_switches(thinking)
    try:
        return model.template.render([{"role": "user", "content": text}], switches=switches)
    except RenderError:
        return None

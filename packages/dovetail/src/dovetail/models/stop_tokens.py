"""Find the stop tokens of a model from its files and its template."""

from collections.abc import Collection, Iterable, Mapping

from dovetail.models.template_probe.context import create_context
from dovetail.prompt.template import ChatTemplate, TemplateProfile

#: Tokens that end a turn in every model that has them. `<|end|>` is not included: some models end
#: their reasoning with it.
KNOWN_STOP_TOKENS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|observation|>",
        "<|user|>",
        "<|end_of_msg|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|assistant_end|>",
        "<|tool_response>",
        "<end_of_turn>",
        "<turn|>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<seed:eos>",
        "</s>",
        "<eos>",
    }
)


def find_stop_tokens(
    template: ChatTemplate,
    profile: TemplateProfile,
    controls: Mapping[str, int],
    named: Iterable[str],
    markers: Collection[str] = (),
) -> frozenset[str]:
    """Find every control token that ends a turn: named in the model files, known, or rendered.

    `markers`: the markers of the parsers, since a token that ends a call does not end a turn.
    """
    found = set(KNOWN_STOP_TOKENS).union(named)
    if not found & controls.keys() or not any(name in controls for name in named):
        found |= _find_rendered_stop(template, profile, controls) - set(markers)
    return frozenset(found & controls.keys())


def _find_rendered_stop(
    template: ChatTemplate, profile: TemplateProfile, controls: Mapping[str, int]
) -> set[str]:
    """Find the control token after the text, unless it also separates reasoning and text."""
    context = create_context(template, {})
    message = context.assistant_message("answer")
    if profile.content == "parts":
        message["content"] = [{"type": "text", "text": message["content"]}]
    text = (
        context.render([context.user_message(), message], tools=False, add_generation_prompt=False)
        or ""
    )
    tail = text.rpartition(context.marks["answer"])[2]
    first = min(
        (c for c in controls if c in tail), key=lambda c: (tail.index(c), -len(c)), default=None
    )
    if first is None:
        return set()
    thinking = {**message, **dict.fromkeys(profile.reasoning_fields, context.marks["reasoning"])}
    text = (
        context.render([context.user_message(), thinking], tools=False, add_generation_prompt=False)
        or ""
    )
    between = text.partition(context.marks["reasoning"])[2].partition(context.marks["answer"])[0]
    return set() if first in between else {first}

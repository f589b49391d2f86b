"""The tokens with which a model ends its turn, as far as its files and its template tell."""

from collections.abc import Collection, Iterable, Mapping

from dovetail.models.template_probe.context import create_context
from dovetail.prompt.template import ChatTemplate, TemplateProfile

#: Tokens that end a turn wherever they exist. `<|end|>` is not among them: some models end their
#: thoughts with it.
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
    """Every control token that ends a turn: named by the model's files, known, or shown.

    `markers` are the parsers': a token that closes a call does not end a turn.
    """
    found = set(KNOWN_STOP_TOKENS).union(named)
    if not found & controls.keys() or not any(name in controls for name in named):
        found |= _find_rendered_stop(template, profile, controls) - set(markers)
    return frozenset(found & controls.keys())


def _find_rendered_stop(
    template: ChatTemplate, profile: TemplateProfile, controls: Mapping[str, int]
) -> set[str]:
    """The control token behind an answer, unless it stands between thought and answer too."""
    table = create_context(template, {})
    said = table.assistant_message("answer")
    if profile.content == "parts":
        said["content"] = [{"type": "text", "text": said["content"]}]
    text = (
        table.render([table.user_message(), said], tools=False, add_generation_prompt=False) or ""
    )
    tail = text.rpartition(table.marks["answer"])[2]
    first = min(
        (c for c in controls if c in tail), key=lambda c: (tail.index(c), -len(c)), default=None
    )
    if first is None:
        return set()
    thinking = {**said, **dict.fromkeys(profile.reasoning_fields, table.marks["thought"])}
    text = (
        table.render([table.user_message(), thinking], tools=False, add_generation_prompt=False)
        or ""
    )
    between = text.partition(table.marks["thought"])[2].partition(table.marks["answer"])[0]
    return set() if first in between else {first}

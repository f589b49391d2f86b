"""The tokens with which a model ends its turn, as far as its files and its template tell."""

from collections.abc import Collection, Iterable, Mapping

from dovetail.models.template_probe.context import bench
from dovetail.prompt.facts import TemplateProfile
from dovetail.prompt.rendering_template import ChatTemplate

#: Tokens that end a turn wherever they exist. `<|end|>` is not among them: some models end their
#: thoughts with it.
KNOWN = frozenset(
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


def terminators(
    template: ChatTemplate,
    facts: TemplateProfile,
    controls: Mapping[str, int],
    named: Iterable[str],
    markers: Collection[str] = (),
) -> frozenset[str]:
    """Every control token that ends a turn: named by the model's files, known, or shown.

    `markers` are the parsers': a token that closes a call does not end a turn.
    """
    found = set(KNOWN).union(named)
    if not found & controls.keys() or not any(name in controls for name in named):
        found |= _shown(template, facts, controls) - set(markers)
    return frozenset(found & controls.keys())


def _shown(template: ChatTemplate, facts: TemplateProfile, controls: Mapping[str, int]) -> set[str]:
    """The control token behind an answer, unless it stands between thought and answer too."""
    table = bench(template, {})
    said = table.says("answer")
    if facts.content == "parts":
        said["content"] = [{"type": "text", "text": said["content"]}]
    text = table.render([table.user(), said], tools=False, generation=False) or ""
    tail = text.rpartition(table.marks["answer"])[2]
    first = min(
        (c for c in controls if c in tail), key=lambda c: (tail.index(c), -len(c)), default=None
    )
    if first is None:
        return set()
    thinking = {**said, **dict.fromkeys(facts.reasoning_fields, table.marks["thought"])}
    text = table.render([table.user(), thinking], tools=False, generation=False) or ""
    between = text.partition(table.marks["thought"])[2].partition(table.marks["answer"])[0]
    return set() if first in between else {first}

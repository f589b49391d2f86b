"""Splice points of real templates: where turns can be spliced, and the suffix after them."""

from itertools import product
from typing import Any

import pytest
from splice_cases import NAMES, THINKING, at_hand, chat_template, facts_of, splicer_of

from dovetail.prompt.messages import ChatMessage, MessageBuilder, ToolNames, format_tools
from dovetail.prompt.splice import (
    FollowingRole,
    SplicePoint,
    Splicer,
    SpliceShape,
    StopTokenMatcher,
    keep_calls_only,
)
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail_model import TextBlock, ToolCallBlock, ToolResultBlock, ToolSpec, Turn

AFTER_CALLS, AFTER_TEXT = SpliceShape(True, "tool"), SpliceShape(False, "user")
END = "<|im_end|>"
SENTENCE = "<｜end▁of▁sentence｜>"

#: Stop token after calls and after text, form of the placeholder, dependency of the first.
KNOWN: dict[str, tuple[str, str, str, str]] = {
    "Qwen-Qwen3-0.6B": (END, END, "calls", "nothing"),
    "Qwen3-Coder": (END, END, "calls", "nothing"),
    "Qwen3.5-4B": (END, END, "calls", "nothing"),
    "GLM-4.7-Flash": ("<|observation|>", "<|user|>", "calls", "nothing"),
    "Kimi-K2-Instruct": (END, END, "calls", "calls"),
    "Kimi-K2-Thinking": (END, END, "calls", "calls"),
    "Kimi-K3": ("<|end_of_msg|>", "<|end_of_msg|>", "calls", "nothing"),
    "openai-gpt-oss-120b": ("<|call|>", "<|end|>", "calls", "nothing"),
    "deepseek-ai-DeepSeek-V3.1": (SENTENCE, SENTENCE, "calls", "nothing"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": (SENTENCE, SENTENCE, "calls", "calls"),
    "llama-cpp-deepseek-r1": (SENTENCE, SENTENCE, "calls", "calls"),
    "meta-llama-Llama-3.1-8B-Instruct": ("<|eot_id|>", "<|eot_id|>", "one call", "nothing"),
    "meetkai-functionary-medium-v3.1": ("<|eom_id|>", "<|eot_id|>", "calls", "nothing"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("<EOS>", "<EOS>", "calls", "nothing"),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("<EOS>", "<EOS>", "calls", "nothing"),
    "google-gemma-4-31B-it": ("<|tool_response>", "<turn|>", "calls", "nothing"),
    "MiniMax-M2": ("[e~[", "[e~[", "calls", "nothing"),
    "NVIDIA-Nemotron-Nano-v2": ("<SPECIAL_12>", "<SPECIAL_12>", "calls", "nothing"),
    "ByteDance-Seed-OSS": ("<seed:eos>", "<seed:eos>", "calls", "nothing"),
    "tencent-Hy3": ("<｜hy_eos:opensource｜>", "<｜hy_eos:opensource｜>", "calls", "nothing"),
    "LFM2-8B-A1B": (END, END, "content", "nothing"),
    "Cohere2MoE": ("<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "calls", "calls"),
}
#: Templates in which no turn can be spliced.
EXCUSED = {
    "llama-cpp-rwkv-world": "ends turns with a blank line, not with a token",
}


@at_hand
@pytest.mark.parametrize("name", KNOWN)
def test_known_splice_points(name: str) -> None:
    behind_calls, behind_text, stand_in, hangs_on = KNOWN[name]
    seams = splicer_of(name).points
    assert seams[AFTER_CALLS].stop == behind_calls
    assert seams[AFTER_TEXT].stop == behind_text
    assert (seams[AFTER_CALLS].placeholder, seams[AFTER_CALLS].depends_on) == (stand_in, hangs_on)
    assert seams[AFTER_TEXT].placeholder == "content"


@at_hand
@pytest.mark.parametrize("name", NAMES)
def test_every_template_can_be_spliced(name: str) -> None:
    seams, facts = splicer_of(name).points, facts_of(name)
    wanted = {AFTER_TEXT}
    if facts.renders_calls and facts.renders_results:
        wanted.add(AFTER_CALLS)
    if name in EXCUSED:
        assert not seams, "excused without need"
    else:
        assert wanted <= seams.keys()


WHAT = {"type": "string", "description": "What."}
TOOLS = format_tools([ToolSpec("f", "Does.", {"type": "object", "properties": {"x": WHAT}})], str)


def _turn(role: Any, *blocks: Any) -> Turn:
    return Turn(role, blocks)


def _results(*ids: str) -> Turn:
    return Turn("tool", tuple(ToolResultBlock(id, (TextBlock(f"Of {id}."),)) for id in ids))


USER_TURN = (_turn("user", TextBlock("Go.")),)
GROWN = (
    *USER_TURN,
    _turn("assistant", TextBlock("First."), ToolCallBlock("a", "f", '{"x": "1"}')),
    _results("a"),
    _turn("assistant", TextBlock("So it is.")),
    _turn("user", TextBlock("And on.")),
    _turn("assistant", ToolCallBlock("b", "f", '{"x": "2"}')),
    _results("b"),
)
ONE = _turn("assistant", ToolCallBlock("c", "f", '{"x": "a long one"}'))
TWO = _turn("assistant", *ONE.blocks, ToolCallBlock("d", "f", '{"x": "b"}'))
TEXT = _turn("assistant", TextBlock("That was it."))
AGAIN = _turn("user", TextBlock("Next."))

#: A turn and the messages after it.
CASES = {
    "call, result": (ONE, (_results("c"),)),
    "call, result, answer, user": (ONE, (_results("c"), TEXT, AGAIN)),
    "calls, results": (TWO, (_results("c", "d"),)),
    "call, user": (ONE, (AGAIN,)),
    "text, user": (TEXT, (AGAIN,)),
}
#: Templates that render a different text after their own turns, because of bugs.
OTHERWISE = {
    "Bielik-11B-v3.0-Instruct": "frames results by places that it counts wrong",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "opens the results of the first loop alone",
}
#: Templates that render the tools before the last user turn: tested with one tool only.
ONE_USER = {"mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"}


@at_hand
@pytest.mark.parametrize("name", [n for n in NAMES if n not in OTHERWISE])
def test_a_suffix_equals_the_rendering_after_a_natural_turn(name: str) -> None:
    """After any history, although only the part that the splice point depends on is rendered."""
    template, facts, splicer = chat_template(name), facts_of(name), splicer_of(name)
    tried = 0
    for history, (label, (turn, behind)) in product((USER_TURN, GROWN), CASES.items()):
        if (len(turn.blocks) > 1 and not facts.many_calls) or (
            name in ONE_USER and AGAIN in behind
        ):
            continue
        if turn is ONE and behind == (AGAIN,) and not facts.consecutive_users:
            continue  # if roles must alternate, a missing result is added
        seam = splicer.points.get(_shape(turn, behind[0]))
        system = (TextBlock("Be brief."),)
        messages = MessageBuilder(facts, str, ToolNames(())).build(
            system, (*history, turn, *behind)
        )
        try:
            tools = TOOLS if facts.renders_tools else []
            natural = template.render(messages, tools, switches=THINKING)
        except RenderError:
            continue
        if seam is None:
            continue
        suffix = _suffix(splicer, seam, facts, (history, turn, behind))
        assert suffix is not None, label
        assert natural.endswith(suffix), label
        assert suffix.startswith(seam.stop)
        tried += 1
    assert tried or name in EXCUSED or not splicer.points


def _shape(turn: Turn, following: Turn) -> SpliceShape:
    follower: FollowingRole = "tool" if following.role == "tool" else "user"
    return SpliceShape(any(isinstance(b, ToolCallBlock) for b in turn.blocks), follower)


def _suffix(
    splicer: Splicer,
    seam: SplicePoint,
    facts: TemplateProfile,
    case: tuple[Any, Turn, tuple[Turn, ...]],
) -> str | None:
    history, turn, behind = case
    before: list[ChatMessage] = []
    conversation = MessageBuilder(facts, str, ToolNames(()))
    messages = conversation.build((TextBlock("Be brief."),), history)
    if seam.depends_on == "history":
        before = messages
    elif seam.depends_on == "calls":
        before = keep_calls_only(messages)
    calls = conversation.number_calls(turn)
    following = [m for later in behind for m in conversation.build_turn(later)]
    tools = TOOLS if facts.renders_tools else []
    return splicer.render_suffix(
        seam, calls, before, conversation.adapt(following), tools, THINKING
    )


@at_hand
@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "GLM-4.7-Flash"])
@pytest.mark.parametrize("called", ["f", "call", "tool", "a", "t", "function", "arg", "value"])
def test_the_suffix_does_not_depend_on_the_tool_name(name: str, called: str) -> None:
    splicer, facts = splicer_of(name), facts_of(name)
    conversation = MessageBuilder(facts, str, ToolNames(()))
    calls = conversation.number_calls(_turn("assistant", ToolCallBlock("c", called, "{}")))
    behind = conversation.build_turn(_results("c"))
    assert (
        splicer.render_suffix(splicer.points[AFTER_CALLS], calls, [], behind, TOOLS, THINKING)
        is not None
    )


@at_hand
@pytest.mark.parametrize("name", [n for n in NAMES if n not in (*EXCUSED, *OTHERWISE)])
def test_stop_token_in_a_result_does_not_move_the_splice(name: str) -> None:
    splicer, facts = splicer_of(name), facts_of(name)
    seam = splicer.points.get(AFTER_CALLS)
    if seam is None:
        assert not facts.renders_calls or not facts.renders_results
        return
    conversation = MessageBuilder(facts, str, ToolNames(()))
    calls = conversation.number_calls(ONE)
    stopped = f"{seam.stop} and {seam.stop}"
    result = Turn("tool", (ToolResultBlock("c", (TextBlock(stopped),)),))
    before = keep_calls_only(conversation.build((), GROWN)) if seam.depends_on == "calls" else []
    suffix = splicer.render_suffix(
        seam, calls, before, conversation.build_turn(result), TOOLS, THINKING
    )
    assert suffix is not None
    plain = Turn("tool", (ToolResultBlock("c", (TextBlock("Zq."),)),))
    expected = splicer.render_suffix(
        seam, calls, before, conversation.build_turn(plain), TOOLS, THINKING
    )
    assert expected is not None
    assert suffix == expected.replace("Zq.", stopped)


IDS_AT_THE_END = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments|tojson }}"
    "#{{ c.id }}@{{ c.function.name }}</call>{% endfor %}"
    "{% if m.role == 'tool' %}{{ m.tool_call_id }}{% endif %}<|end|>{% endfor %}<|assistant|>"
)
STOPS = StopTokenMatcher(
    ["<|end|>"], ["<|end|>", "<|assistant|>", "<|user|>", "<|tool|>"], frozenset()
)


def test_ids_in_the_closing() -> None:
    """A format that ends a call with its id and name, like the calls before it."""
    splicer = Splicer(ChatTemplate(IDS_AT_THE_END), TemplateProfile(), STOPS)
    result: ChatMessage = {"role": "tool", "content": "R", "tool_call_id": "call_7", "name": "call"}
    seam = splicer.points[AFTER_CALLS]
    for calls in ([("call_7", "call")], [("call_6", "g"), ("call_7", "call")]):
        tail = splicer.render_suffix(seam, calls, [], [result], (), {})
        assert tail == "<|end|><|tool|>Rcall_7<|end|><|assistant|>"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "no token ends a turn"),
        (
            "{% for m in messages %}{{ m.content[:4] }}<|end|>{% endfor %}",
            "the nonce is not shown",
        ),
        (
            "{% for m in messages %}{{ m.content }}<|end|>{{ m.content == 'Sure.' }}{% endfor %}",
            "a natural turn is followed by something else",
        ),
    ],
)
def test_no_splice_point_if_the_placeholder_is_rendered_differently(
    template: str, why: str
) -> None:
    assert not Splicer(ChatTemplate(template), TemplateProfile(), STOPS).points, why


def test_a_turn_with_an_unknown_closing_is_not_spliced() -> None:
    text = "{% for m in messages %}{{ m.content }}{{ extra }}<|end|>{% endfor %}"
    splicer = Splicer(ChatTemplate(text), TemplateProfile(), STOPS)
    behind: list[ChatMessage] = [{"role": "user", "content": "On."}]
    assert (
        splicer.render_suffix(splicer.points[AFTER_TEXT], [], [], behind, (), {})
        == "<|end|>On.<|end|>"
    )
    assert (
        splicer.render_suffix(splicer.points[AFTER_TEXT], [], [], behind, (), {"extra": "?"})
        is None
    )


TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
COUNTED = "{{ messages | selectattr('tool_calls', 'defined') | list | length }}"
RESULTS = "{{ messages | selectattr('role', 'equalto', 'tool') | map(attribute='content') | join }}"


@pytest.mark.parametrize(
    ("ending", "hangs_on"),
    [
        ("", "nothing"),
        (COUNTED, "calls"),
        (RESULTS, "history"),
        ("{{ messages | length }}", "history"),
        ("{{ messages[0].content }}", "history"),
        ("{{ tools | length }}", "history"),
    ],
    ids=["nothing", "the number of calls", "results", "messages", "system text", "tools"],
)
def test_dependencies_of_a_suffix(ending: str, hangs_on: str) -> None:
    splicer = Splicer(ChatTemplate(TURNS + ending + "<|assistant|>"), TemplateProfile(), STOPS)
    assert splicer.points[AFTER_TEXT].depends_on == hangs_on


def test_the_longest_of_two_stop_tokens_is_found() -> None:
    stops = StopTokenMatcher(["<|end", "<|end|>"], [], frozenset())
    assert stops.find_first("said<|end|>next", "next") == "<|end|>"


def test_a_stop_token_after_the_following_text_is_not_found() -> None:
    assert STOPS.find_first("said next<|end|>", "next") is None

"""Requests prepared from end to end: switches, policies, and what the doctor says of them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_clients import ChatAgent, ClaudeCode, MessagesAgent, PlainChat
from real_models import PAIRS, TOKENIZERS, model, require
from scripted_run import Player

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.models.renderers import RendererCache
from dovetail.pipeline.preparation import ChatPreparer, PromptSettings
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import (
    Identity,
    InvalidRequest,
    OutputBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolSpec,
    Turn,
)
from dovetail_tokenizers.words import WordEncoder

THINK = ReasoningBlock("Let me look.")
CALL = ToolCallBlock("", "run_command", '{"command": "ls"}')
DONE = TextBlock("It is done.")
HI = (Turn("user", (TextBlock("Hi."),)),)
SMOLLM2 = TOKENIZERS / "smollm2" / "smollm2.gguf"


def _model(name: str) -> Model:
    pair = next(pair for pair in PAIRS if pair.name == name)
    require(pair)
    return model(pair)


def _player(
    served: Model, settings: PromptSettings | None = None, clock: Callable[[], float] = lambda: 0.0
) -> Player:
    preparer = ChatPreparer(
        served, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]), settings, clock=clock
    )
    writer = TurnWriter(served.tool_parser, served.reasoning_parser)
    return Player(preparer, served.tokenizer, min(served.stop_ids), writer)


async def _step(player: Player, agent: Any, *blocks: OutputBlock) -> Any:
    """The model says something, and its calls are answered."""
    played = await player.answer(agent, blocks)
    if played.heard:
        agent.answer([(call, "a file") for call in played.heard])
    return played


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def _request(**changes: Any) -> Request:
    return Request(**{"model": "m", "turns": HI, **changes})


def test_silence_about_thinking_means_what_the_turn_before_was_asked() -> None:
    """Claude Code's agents leave `thinking` out, and other requests share their session."""

    async def main() -> None:
        served = _model("Qwen3")
        player, agent = _player(served), Switching()

        def closed(ids: Sequence[int]) -> bool:
            return "</think>" in served.tokenizer.decode(ids[-8:])

        agent.ask("Go.")
        agent.thinking_type = "disabled"
        first = await _step(player, agent, CALL)
        assert closed(first.prepared.prompt.ids)
        agent.thinking_type = None
        silent = await player.prepare(agent)
        assert closed(silent.prompt.ids)
        assert (silent.prompt.origin, silent.diagnosis.reason) == ("grown", None)
        beside = Switching(agent.session)
        beside.thinking_type = None
        beside.ask("A title, please.")
        assert not closed((await player.prepare(beside)).prompt.ids)
        agent.thinking_type = "adaptive"
        assert not closed((await player.prepare(agent)).prompt.ids)

    _run(main())


@pytest.mark.parametrize(
    ("settings", "closed"),
    [
        (PromptSettings(), False),
        (PromptSettings(default_thinking="disabled"), True),
        (PromptSettings(template_switches={"enable_thinking": False}), True),
    ],
)
def test_what_the_operator_decides(settings: PromptSettings, closed: bool) -> None:
    async def main() -> None:
        served = _model("Qwen3")
        preparer = _player(served, settings).preparer
        silent = (await preparer.prepare(_request())).prompt
        assert ("</think>" in served.tokenizer.decode(silent.ids[-12:])) is closed
        asked = (await preparer.prepare(_request(thinking=Thinking(enabled=True)))).prompt
        assert "</think>" not in served.tokenizer.decode(asked.ids[-12:])

    _run(main())


def test_keep_all_is_another_renderer_where_the_template_has_a_switch_for_it() -> None:
    served = _model("GLM-4.7")
    renderers = RendererCache(served)
    usual = renderers.get(True, served.switches)
    assert usual is renderers.default
    assert not usual.keeps_history(True)
    kept = renderers.get(True, {**served.switches, **usual.profile.keep_switches})
    assert kept is not usual
    assert kept.keeps_history(True)
    assert renderers.get(True, {**served.switches, "unread": 1}) is usual
    assert renderers.get(True, {**served.switches, **usual.profile.keep_switches}) is kept


def test_keep_all_keeps_the_thoughts_of_a_finished_loop() -> None:
    """Claude Code asks for it with every request; a template without a switch has its way."""

    async def main() -> None:
        for name, kept in (("GLM-4.7", True), ("Qwen3", False)):
            player, agent = _player(_model(name)), ClaudeCode()
            agent.ask("Go.")
            await _step(player, agent, THINK, CALL)
            last = await _step(player, agent, THINK, DONE)
            agent.ask("On.")
            made = await player.prepare(agent)
            assert (made.prompt.ids[: len(last.whole)] == last.whole) is kept
            assert made.prompt.origin == ("grown" if kept else "resumed")
            assert made.diagnosis.reason == (None if kept else "policy")
            assert made.prompt.reasoning_dropped is not kept

    _run(main())


def test_a_tool_step_is_grown_and_tells_so() -> None:
    async def main() -> None:
        player, agent = _player(_model("Qwen3")), ClaudeCode()
        agent.ask("Go.")
        first = await player.prepare(agent)
        assert (first.diagnosis.reason, first.prompt.origin) == ("first", "cold")
        played = await _step(player, agent, THINK, CALL)
        made = await player.prepare(agent)
        assert (made.prompt.origin, set(made.prompt.exact_turns)) == ("grown", {1})
        assert made.prompt.reused_tokens == len(played.whole) == made.diagnosis.common_tokens
        assert made.diagnosis.reason is None
        assert made.prompt.ids[: len(played.whole)] == played.whole

    _run(main())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda agent: agent.restate("Another system text."), "header"),
        (lambda agent: agent.tools.pop("edit_file"), "tools"),
        (lambda agent: agent.history[0].update(content="Something else."), "history"),
        (lambda agent: None, None),
    ],
    ids=["header", "tools", "history", "nothing"],
)
def test_the_doctor_names_the_change(change: Callable[[Any], Any], reason: str | None) -> None:
    async def main() -> None:
        player, agent = _player(_model("Qwen3")), Switching()
        agent.ask("Go.")
        await _step(player, agent, THINK, CALL)
        await _step(player, agent, THINK, CALL)
        change(agent)
        made = await player.prepare(agent)
        assert made.diagnosis.reason == reason
        assert made.prompt.origin == ("grown" if reason is None else "iterated")
        assert made.prompt.exact_turns == ({3} if reason is None else {1, 3})

    _run(main())


class Switching(MessagesAgent):
    """Says each time whether it wants thoughts."""

    thinking_type: str | None = "adaptive"

    def body(self) -> dict[str, Any]:
        body = super().body()
        body.pop("thinking")
        return {**body, "thinking": {"type": self.thinking_type}} if self.thinking_type else body


def test_thinking_turned_off_costs_nothing_where_only_the_end_of_the_prompt_tells_it() -> None:
    async def main() -> None:
        player, agent = _player(_model("Qwen3")), Switching()
        agent.ask("Go.")
        await _step(player, agent, THINK, CALL)
        last = await _step(player, agent, THINK, CALL)
        agent.thinking_type = "disabled"
        made = await player.prepare(agent)
        assert made.prompt.ids[: len(last.whole)] == last.whole
        assert (made.diagnosis.reason, set(made.prompt.exact_turns)) == (None, {1, 3})

    _run(main())


def test_tenants_do_not_share_turns() -> None:
    async def main() -> None:
        served = _model("Qwen3")
        player, agent = _player(served), MessagesAgent()
        agent.ask("Go.")
        await _step(player, agent, THINK, CALL)
        body, headers = agent.request()
        request = agent.codec.decode(body, headers)
        ours = await player.preparer.prepare(request)
        identity = Identity(tenant="other", session=request.identity.session)
        changed = Request("m", request.turns, request.system, request.tools, identity=identity)
        theirs = await player.preparer.prepare(changed)
        assert ours.prompt.origin == "grown"
        assert theirs.prompt.origin != "grown"
        assert theirs.diagnosis.reason == "first"
        assert theirs.diagnosis.shared_tokens == 0
        assert "seal_foreign" in theirs.prompt.notes

    _run(main())


class Clock:
    """Told what time it is."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_thoughts_of_finished_loops_are_cleared_once_when_a_session_comes_back_late() -> None:
    async def main() -> None:
        clock = Clock()
        served = _model("Ministral-3")  # keeps all thoughts by itself
        player = _player(served, PromptSettings(resume_drop_thinking=3600.0), clock)
        agent = MessagesAgent()
        agent.ask("Go.")
        await _step(player, agent, THINK, CALL)
        await _step(player, agent, ReasoningBlock("Old."), TextBlock("Found."))
        agent.ask("And on.")
        await _step(player, agent, ReasoningBlock("Running."), CALL)
        clock.now += 3599
        soon = await player.prepare(agent)
        assert (soon.prompt.origin, soon.diagnosis.reason) == ("grown", None)
        clock.now += 1
        late = await player.prepare(agent)
        assert (late.prompt.origin, late.diagnosis.reason) == ("iterated", "resume")
        text = served.tokenizer.decode(late.prompt.ids)
        assert "Let me look." not in text
        assert "Old." not in text
        assert "Running." in text  # the loop that goes on needs its thoughts
        played = await _step(player, agent, ReasoningBlock("Again."), CALL)
        assert played.prepared.prompt.ids == late.prompt.ids
        after = await player.prepare(agent)
        assert (after.prompt.origin, after.diagnosis.reason) == ("grown", None)
        assert after.prompt.ids[: len(played.whole)] == played.whole

    _run(main())


def test_nothing_is_cleared_where_there_are_no_thoughts_or_it_is_off() -> None:
    async def main() -> None:
        for settings, blocks in (
            (PromptSettings(), (THINK, CALL)),
            (PromptSettings(resume_drop_thinking=60.0), (CALL,)),
        ):
            clock = Clock()
            player, agent = _player(_model("Qwen3"), settings, clock), PlainChat()
            agent.ask("Go.")
            await _step(player, agent, *blocks)
            clock.now += 1e9
            assert (await player.prepare(agent)).prompt.origin == "grown"

    _run(main())


def test_what_the_template_refuses_is_the_clients_fault(tmp_path: Path) -> None:
    async def main() -> None:
        _model("Qwen3")
        text = (
            "{% if odd %}{{ raise_exception('Not so odd.') }}{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}"
        )
        (tmp_path / "odd.jinja").write_text(text)
        served = load_model(TOKENIZERS / "qwen3", custom_template=tmp_path / "odd.jinja")
        preparer = _player(served).preparer
        await preparer.prepare(_request())
        odd = _request(thinking=Thinking(template_kwargs={"odd": True}))
        with pytest.raises(InvalidRequest, match=r"template refuses.*Not so odd") as caught:
            await preparer.prepare(odd)
        assert caught.value.kind == "invalid_request"

    _run(main())


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="no SmolLM2 at hand: make tokenizers")
def test_a_template_without_tools_carries_a_tool_loop() -> None:
    async def main() -> None:
        served = load_model(SMOLLM2)
        assert not served.facts.renders_tools
        assert served.tool_parser == "hermes"
        for kind in (MessagesAgent, ChatAgent, PlainChat):
            player, agent = _player(served), kind()
            agent.ask("Go.")
            first = await player.prepare(agent)
            offered = served.tokenizer.decode(first.prompt.ids)
            assert '"name": "run_command"' in offered
            assert agent.system in offered
            played = await _step(player, agent, TextBlock("I look."), CALL)
            assert [call.name for call in played.heard] == ["run_command"]
            made = await player.prepare(agent)
            assert (made.prompt.origin, set(made.prompt.exact_turns)) == ("grown", {1})
            assert made.prompt.ids[: len(played.whole)] == played.whole
            suffix = served.tokenizer.decode(made.prompt.ids[len(played.whole) :])
            assert "a file" in suffix
            last = await _step(player, agent, DONE)
            agent.ask("On.")
            made = await player.prepare(agent)
            assert made.prompt.ids[: len(last.whole)] == last.whole
            assert made.diagnosis.reason is None

    _run(main())


def test_counting_leaves_no_trace() -> None:
    async def main() -> None:
        served = _model("Qwen3")
        player, agent = _player(served), MessagesAgent()
        agent.ask("Go.")
        body, headers = agent.request()
        request = agent.codec.decode(body, headers)
        counted = await player.preparer.count_tokens(request)
        made = await player.preparer.prepare(request)
        assert counted == len(made.prompt.ids)
        assert made.diagnosis.reason == "first"

    _run(main())


def test_the_sighting_names_its_tenant() -> None:
    async def main() -> None:
        preparer = _player(_model("Qwen3")).preparer
        identity = Identity(tenant="a", session="s")
        seen = (await preparer.prepare(_request(identity=identity), "claude-code")).prefix_snapshot
        assert seen.session is not None
        assert seen.session.startswith("a\0")
        assert seen.harness == "a\0claude-code"
        assert (await preparer.prepare(_request())).prefix_snapshot.session is None

    _run(main())


def test_requests_with_and_without_tools_have_their_own_heads() -> None:
    async def main() -> None:
        preparer = _player(_model("Qwen3")).preparer
        bare = (await preparer.prepare(_request())).prompt.head
        tooled = (await preparer.prepare(_request(tools=(ToolSpec("f"),)))).prompt.head
        assert (bare.system, bare.switches) == (tooled.system, tooled.switches)
        assert bare.tools != tooled.tools
        assert bare.whole != tooled.whole

    _run(main())


def test_a_new_session_encodes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    served = _model("Qwen3")
    system = "".join(f"Rule {n}: be brief, and {n * n} times so.\n" for n in range(1000))
    tool = ToolSpec("read_it", "Reads." + "It does. " * 400, {"type": "object"})
    encoded: list[str] = []
    plain = WordEncoder.encode

    def encode(self: WordEncoder, text: str) -> list[int] | None:
        encoded.append(text)
        return plain(self, text)

    async def characters(player: Player, said: str, front: str = "") -> int:
        encoded.clear()
        turns = (Turn("user", (TextBlock(said),)),)
        blocks = (TextBlock(front + system),)
        await player.preparer.prepare(_request(turns=turns, system=blocks, tools=(tool,)))
        return sum(map(len, encoded))

    async def main() -> None:
        await characters(_player(served), "Hi.")
        monkeypatch.setattr(WordEncoder, "encode", encode)
        assert await characters(_player(served), "What is new?") < 200
        assert await characters(_player(served), "And now?", "Another first line.\n") < 25_000

    _run(main())


def test_a_very_long_text_does_not_stop_the_loop() -> None:
    """It is encoded beside the loop, and becomes the same tokens."""
    long = "\n".join(f"line {at} of a file that somebody pasted" for at in range(8000))
    request = Request(model="m", turns=(Turn("user", (TextBlock(long),)),))
    beats = 0

    async def scene() -> Sequence[int]:
        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        beating = asyncio.create_task(beat())
        served = load_model(TOKENIZERS / "qwen3")
        preparer = ChatPreparer(served, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
        await asyncio.sleep(0)
        before = beats
        prepared = await preparer.prepare(request)
        beating.cancel()
        assert beats - before > 20
        text = served.tokenizer.decode(prepared.prompt.ids)
        assert long in text
        assert served.tokenizer.encode(text) == list(prepared.prompt.ids)
        return prepared.prompt.ids

    require(next(pair for pair in PAIRS if pair.name.startswith("Qwen3")))
    assert len(asyncio.run(scene())) > 50_000

"""Request preparation end to end: switches, policies, and prefix diagnostics."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_clients import AgentCall, ChatAgent, ClaudeCode, MessagesAgent, PlainChat
from real_models import PAIRS, TOKENIZERS, model, require
from scripted_run import ScriptedRunner

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, RendererCache, load_model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.rendering import PromptSettings
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


def _runner(
    model: Model, settings: PromptSettings | None = None, clock: Callable[[], float] = lambda: 0.0
) -> ScriptedRunner:
    preparer = ChatPreparer(
        model, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]), settings, clock=clock
    )
    writer = TurnWriter(model.tool_parser, model.reasoning_parser)
    return ScriptedRunner(preparer, model.tokenizer, min(model.stop_ids), writer)


async def _step(runner: ScriptedRunner, agent: Any, *blocks: OutputBlock) -> Any:
    """Generate a turn and send the results of its calls."""
    turn = await runner.run_blocks(agent, blocks)
    if turn.calls:
        agent.add_results([(call, "a file") for call in turn.calls])
    return turn


def _run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def _request(**changes: Any) -> Request:
    return Request(**{"model": "m", "turns": HI, **changes})


def test_unset_thinking_is_inherited_from_the_previous_turn() -> None:
    """Agents of Claude Code omit `thinking`, and other requests share their session."""

    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), Switching()

        def closed(ids: Sequence[int]) -> bool:
            return "</think>" in loaded.tokenizer.decode(ids[-8:])

        agent.add_user_message("Go.")
        agent.thinking_type = "disabled"
        first = await _step(runner, agent, CALL)
        assert closed(first.prepared.prompt.ids)
        agent.thinking_type = None
        silent = await runner.prepare(agent)
        assert closed(silent.prompt.ids)
        assert (silent.prompt.origin, silent.diagnosis.reason) == ("grown", None)
        title_agent = Switching(agent.session)
        title_agent.thinking_type = None
        title_agent.add_user_message("A title, please.")
        assert not closed((await runner.prepare(title_agent)).prompt.ids)
        agent.thinking_type = "adaptive"
        assert not closed((await runner.prepare(agent)).prompt.ids)

    _run(main())


@pytest.mark.parametrize(
    ("settings", "closed"),
    [
        (PromptSettings(), False),
        (PromptSettings(default_thinking="disabled"), True),
        (PromptSettings(template_switches={"enable_thinking": False}), True),
    ],
)
def test_settings_of_the_operator(settings: PromptSettings, closed: bool) -> None:
    async def main() -> None:
        loaded = _model("Qwen3")
        preparer = _runner(loaded, settings).preparer
        silent = (await preparer.prepare(_request())).prompt
        assert ("</think>" in loaded.tokenizer.decode(silent.ids[-12:])) is closed
        requested = (await preparer.prepare(_request(thinking=Thinking(enabled=True)))).prompt
        assert "</think>" not in loaded.tokenizer.decode(requested.ids[-12:])

    _run(main())


def test_keep_all_uses_another_renderer_if_the_template_has_a_switch() -> None:
    loaded = _model("GLM-4.7")
    renderers = RendererCache(loaded)
    usual = renderers.get(True, loaded.switches)
    assert usual is renderers.default
    assert not usual.keeps_history(True)
    keep_all = renderers.get(True, {**loaded.switches, **usual.profile.keep_switches})
    assert keep_all is not usual
    assert keep_all.keeps_history(True)
    assert renderers.get(True, {**loaded.switches, "unread": 1}) is usual
    assert renderers.get(True, {**loaded.switches, **usual.profile.keep_switches}) is keep_all


def test_keep_all_keeps_the_reasoning_of_a_finished_loop() -> None:
    """Claude Code always requests it; a template without a switch still drops reasoning."""

    async def main() -> None:
        for name, preserved in (("GLM-4.7", True), ("Qwen3", False)):
            runner, agent = _runner(_model(name)), ClaudeCode()
            agent.add_user_message("Go.")
            await _step(runner, agent, THINK, CALL)
            last = await _step(runner, agent, THINK, DONE)
            agent.add_user_message("On.")
            prepared = await runner.prepare(agent)
            assert (prepared.prompt.ids[: len(last.token_ids)] == last.token_ids) is preserved
            assert prepared.prompt.origin == ("grown" if preserved else "resumed")
            assert prepared.diagnosis.reason == (None if preserved else "policy")
            assert prepared.prompt.reasoning_dropped is not preserved

    _run(main())


def test_tool_step_is_grown_and_reported() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), ClaudeCode()
        agent.add_user_message("Go.")
        first = await runner.prepare(agent)
        assert (first.diagnosis.reason, first.prompt.origin) == ("first", "cold")
        turn = await _step(runner, agent, THINK, CALL)
        prepared = await runner.prepare(agent)
        assert (prepared.prompt.origin, set(prepared.prompt.exact_turns)) == ("grown", {1})
        assert (
            prepared.prompt.reused_tokens == len(turn.token_ids) == prepared.diagnosis.common_tokens
        )
        assert prepared.diagnosis.reason is None
        assert prepared.prompt.ids[: len(turn.token_ids)] == turn.token_ids

    _run(main())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda agent: agent.set_system("Another system text."), "header"),
        (lambda agent: agent.tools.pop("edit_file"), None),  # announced at the end of the prompt
        (lambda agent: agent.history[0].update(content="Something else."), "history"),
        (lambda agent: None, None),
    ],
    ids=["header", "tools", "history", "nothing"],
)
def test_prefix_diagnostics_name_the_change(
    change: Callable[[Any], Any], reason: str | None
) -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), Switching()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        await _step(runner, agent, THINK, CALL)
        change(agent)
        prepared = await runner.prepare(agent)
        assert prepared.diagnosis.reason == reason
        assert prepared.prompt.origin == ("grown" if reason is None else "iterated")
        assert prepared.prompt.exact_turns == ({3} if reason is None else {1, 3})

    _run(main())


class Switching(MessagesAgent):
    """Sets its thinking mode in each request."""

    thinking_type: str | None = "adaptive"

    def body(self) -> dict[str, Any]:
        body = super().body()
        body.pop("thinking")
        return {**body, "thinking": {"type": self.thinking_type}} if self.thinking_type else body


def test_turning_thinking_off_keeps_the_prefix_if_only_the_prompt_end_changes() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), Switching()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        last = await _step(runner, agent, THINK, CALL)
        agent.thinking_type = "disabled"
        prepared = await runner.prepare(agent)
        assert prepared.prompt.ids[: len(last.token_ids)] == last.token_ids
        assert (prepared.diagnosis.reason, set(prepared.prompt.exact_turns)) == (None, {1, 3})

    _run(main())


class LiteLLM(MessagesAgent):
    """Clients of Chat Completions behind LiteLLM: empty text becomes a placeholder, as observed."""

    def receive(self, frames: bytes) -> list[AgentCall]:
        calls = super().receive(frames)
        content = self.history[-1]["content"]
        if not any(block["type"] == "text" for block in content):
            placeholder = "[System: Empty message content sanitised to satisfy protocol]"
            content[:] = [
                {"type": "text", "text": placeholder},
                *(block for block in content if block["type"] != "thinking"),
            ]
        return calls


def test_litellm_placeholder_is_not_an_edit() -> None:
    async def main() -> None:
        runner, agent = _runner(_model("Qwen3")), LiteLLM()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        last = await _step(runner, agent, CALL)
        prepared = await runner.prepare(agent)
        assert (prepared.prompt.origin, set(prepared.prompt.exact_turns)) == ("grown", {3})
        assert prepared.prompt.ids[: len(last.token_ids)] == last.token_ids
        assert prepared.diagnosis.reason is None

    _run(main())


def test_tenants_do_not_share_turns() -> None:
    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        body, headers = agent.request()
        request = agent.codec.decode(body, headers)
        ours = await runner.preparer.prepare(request)
        identity = Identity(tenant="other", session=request.identity.session)
        changed = Request("m", request.turns, request.system, request.tools, identity=identity)
        theirs = await runner.preparer.prepare(changed)
        assert ours.prompt.origin == "grown"
        assert theirs.prompt.origin != "grown"
        assert theirs.diagnosis.reason == "first"
        assert theirs.diagnosis.shared_tokens == 0
        assert "seal_foreign" in theirs.prompt.notes

    _run(main())


class Clock:
    """A clock that is set by the test."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_reasoning_of_finished_loops_is_cleared_once_on_a_late_resume() -> None:
    async def main() -> None:
        clock = Clock()
        loaded = _model("Ministral-3")  # preserves all reasoning by default
        runner = _runner(loaded, PromptSettings(resume_drop_thinking=3600.0), clock)
        agent = MessagesAgent()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        await _step(runner, agent, ReasoningBlock("Old."), TextBlock("Found."))
        agent.add_user_message("And on.")
        await _step(runner, agent, ReasoningBlock("Running."), CALL)
        clock.now += 3599
        soon = await runner.prepare(agent)
        assert (soon.prompt.origin, soon.diagnosis.reason) == ("grown", None)
        clock.now += 1
        late = await runner.prepare(agent)
        assert (late.prompt.origin, late.diagnosis.reason) == ("iterated", "resume")
        text = loaded.tokenizer.decode(late.prompt.ids)
        assert "Let me look." not in text
        assert "Old." not in text
        assert "Running." in text  # the running loop needs its reasoning
        turn = await _step(runner, agent, ReasoningBlock("Again."), CALL)
        assert turn.prepared.prompt.ids == late.prompt.ids
        after = await runner.prepare(agent)
        assert (after.prompt.origin, after.diagnosis.reason) == ("grown", None)
        assert after.prompt.ids[: len(turn.token_ids)] == turn.token_ids

    _run(main())


def test_nothing_is_cleared_without_reasoning_or_if_turned_off() -> None:
    async def main() -> None:
        for settings, blocks in (
            (PromptSettings(), (THINK, CALL)),
            (PromptSettings(resume_drop_thinking=60.0), (CALL,)),
        ):
            clock = Clock()
            runner, agent = _runner(_model("Qwen3"), settings, clock), PlainChat()
            agent.add_user_message("Go.")
            await _step(runner, agent, *blocks)
            clock.now += 1e9
            assert (await runner.prepare(agent)).prompt.origin == "grown"

    _run(main())


def test_a_conversation_rejected_by_the_template_is_an_invalid_request(tmp_path: Path) -> None:
    async def main() -> None:
        _model("Qwen3")
        text = (
            "{% if odd %}{{ raise_exception('Not so odd.') }}{% endif %}"
            "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
            "{% endfor %}"
        )
        (tmp_path / "odd.jinja").write_text(text)
        loaded = load_model(TOKENIZERS / "qwen3", custom_template=tmp_path / "odd.jinja")
        preparer = _runner(loaded).preparer
        await preparer.prepare(_request())
        odd = _request(thinking=Thinking(template_kwargs={"odd": True}))
        with pytest.raises(
            InvalidRequest, match=r"template of the model rejected.*Not so odd"
        ) as caught:
            await preparer.prepare(odd)
        assert caught.value.kind == "invalid_request"

    _run(main())


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="no SmolLM2 at hand: make tokenizers")
def test_a_template_without_tools_supports_a_tool_loop() -> None:
    async def main() -> None:
        loaded = load_model(SMOLLM2)
        assert not loaded.profile.renders_tools
        assert loaded.tool_parser == "hermes"
        for kind in (MessagesAgent, ChatAgent, PlainChat):
            runner, agent = _runner(loaded), kind()
            agent.add_user_message("Go.")
            first = await runner.prepare(agent)
            offered = loaded.tokenizer.decode(first.prompt.ids)
            assert '"name": "run_command"' in offered
            assert agent.system in offered
            turn = await _step(runner, agent, TextBlock("I look."), CALL)
            assert [call.name for call in turn.calls] == ["run_command"]
            prepared = await runner.prepare(agent)
            assert (prepared.prompt.origin, set(prepared.prompt.exact_turns)) == ("grown", {1})
            assert prepared.prompt.ids[: len(turn.token_ids)] == turn.token_ids
            suffix = loaded.tokenizer.decode(prepared.prompt.ids[len(turn.token_ids) :])
            assert "a file" in suffix
            last = await _step(runner, agent, DONE)
            agent.add_user_message("On.")
            prepared = await runner.prepare(agent)
            assert prepared.prompt.ids[: len(last.token_ids)] == last.token_ids
            assert prepared.diagnosis.reason is None

    _run(main())


def test_counting_records_nothing() -> None:
    async def main() -> None:
        loaded = _model("Qwen3")
        runner, agent = _runner(loaded), MessagesAgent()
        agent.add_user_message("Go.")
        body, headers = agent.request()
        request = agent.codec.decode(body, headers)
        counted = await runner.preparer.count_tokens(request)
        prepared = await runner.preparer.prepare(request)
        assert counted == len(prepared.prompt.ids)
        assert prepared.diagnosis.reason == "first"

    _run(main())


def test_the_snapshot_names_its_tenant() -> None:
    async def main() -> None:
        preparer = _runner(_model("Qwen3")).preparer
        identity = Identity(tenant="a", session="s")
        seen = (await preparer.prepare(_request(identity=identity), "claude-code")).prefix_snapshot
        assert seen.session is not None
        assert seen.session.startswith("a\0")
        assert seen.harness == "a\0claude-code"
        unnamed = (await preparer.prepare(_request())).prefix_snapshot.session
        assert unnamed is not None
        assert "\0" not in unnamed  # no client can choose this name

    _run(main())


def test_requests_with_and_without_tools_have_different_heads() -> None:
    async def main() -> None:
        preparer = _runner(_model("Qwen3")).preparer
        bare = (await preparer.prepare(_request())).prompt.head
        tooled = (await preparer.prepare(_request(tools=(ToolSpec("f"),)))).prompt.head
        assert (bare.system, bare.switches) == (tooled.system, tooled.switches)
        assert bare.tools != tooled.tools
        assert bare.whole != tooled.whole

    _run(main())


def test_a_new_session_encodes_only_new_text(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = _model("Qwen3")
    system = "".join(f"Rule {n}: be brief, and {n * n} times so.\n" for n in range(1000))
    tool = ToolSpec("read_it", "Reads." + "It does. " * 400, {"type": "object"})
    encoded: list[str] = []
    plain = WordEncoder.encode

    def encode(self: WordEncoder, text: str) -> list[int] | None:
        encoded.append(text)
        return plain(self, text)

    async def characters(runner: ScriptedRunner, text: str, front: str = "") -> int:
        encoded.clear()
        turns = (Turn("user", (TextBlock(text),)),)
        blocks = (TextBlock(front + system),)
        await runner.preparer.prepare(_request(turns=turns, system=blocks, tools=(tool,)))
        return sum(map(len, encoded))

    async def main() -> None:
        await characters(_runner(loaded), "Hi.")
        monkeypatch.setattr(WordEncoder, "encode", encode)
        assert await characters(_runner(loaded), "What is new?") < 200
        assert await characters(_runner(loaded), "And now?", "Another first line.\n") < 25_000

    _run(main())


def test_a_very_long_text_does_not_block_the_event_loop() -> None:
    """The text is encoded in a thread, with the same result."""
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
        loaded = load_model(TOKENIZERS / "qwen3")
        preparer = ChatPreparer(loaded, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
        await asyncio.sleep(0)
        before = beats
        prepared = await preparer.prepare(request)
        beating.cancel()
        assert beats - before > 20
        text = loaded.tokenizer.decode(prepared.prompt.ids)
        assert long in text
        assert loaded.tokenizer.encode(text) == list(prepared.prompt.ids)
        return prepared.prompt.ids

    require(next(pair for pair in PAIRS if pair.name.startswith("Qwen3")))
    assert len(asyncio.run(scene())) > 50_000


@pytest.mark.parametrize(
    ("name", "extends"), [("Qwen3", True), ("GLM-4.7", True), ("Gemma-4", False)]
)
def test_notification_is_not_a_user_turn_where_the_template_allows_it(
    name: str, extends: bool
) -> None:
    """Claude Code reports finished background tasks in system messages after the last response."""

    async def main() -> None:
        runner, agent = _runner(_model(name)), ClaudeCode()
        agent.add_user_message("Go.")
        await _step(runner, agent, THINK, CALL)
        last = await _step(runner, agent, THINK, DONE)
        agent.history.append({"role": "system", "content": "The task has finished."})
        prepared = await runner.prepare(agent)
        assert (prepared.prompt.ids[: len(last.token_ids)] == last.token_ids) is extends

    _run(main())

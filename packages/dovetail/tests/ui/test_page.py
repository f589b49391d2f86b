"""The web UI in a real browser, while a scripted agent works on a real server."""

import json
from pathlib import Path
from typing import Any

import pytest
from agent_clients import ClaudeCode
from browser_fixture import AXE, Browser, browsing
from http_fixture import NAME, Stage, run, serving, tiny_model
from simulated_sessions import SimulatedSession, fill, long_session

from dovetail.access.auth import ApiKeys
from dovetail.cli.trace_html import write_html
from dovetail.engines.scripted import ScriptedEngine, parse_script
from dovetail.http.options import HttpOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.telemetry.record import RequestContents
from dovetail.telemetry.trace.reader import Trace, read_traces
from dovetail.telemetry.trace.writer import TraceFile, TraceWriter

pytestmark = [pytest.mark.ui, pytest.mark.timeout(300)]
CALL = '<tool_call>\n{"name": "run_command", "arguments": {"command": "ls %d"}}\n</tool_call>'
TURNS = 4
SESSION = "basket"
UNTIL_SHOWN = "(text) => document.querySelector('#tile-requests-detail')?.textContent === text"


def registry() -> ModelRegistry:
    """A model whose engine follows a script and has a prefix cache."""
    model = tiny_model()
    texts = [f"<think>\nWell, {at}.\n</think>\n\nI look.\n{CALL % at}" for at in range(TURNS)]
    script = json.dumps({"turns": [{"text": text} for text in texts]})
    stop = model.tokenizer.controls["<|im_end|>"]
    engine = ScriptedEngine(model.tokenizer, parse_script(script), stop_ids=(stop,))
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    entry = TokenModel((NAME,), model, preparer, ReplicaPool([engine]))
    return ModelRegistry([entry], {"m": NAME, "claude-*": NAME})


async def run_agent(stage: Stage, turns: int = TURNS, **headers: str) -> None:
    """Run a tool loop. The system text changes before the last request."""
    agent = ClaudeCode(SESSION, "Be brief.")
    agent.add_user_message("Fix the empty basket.")
    for number in range(turns):
        if number == turns - 1:
            agent.set_system("Be thorough.")
        sent = {name.replace("-", "_"): value for name, value in agent.headers.items()}
        sent["user_agent"] = "claude-cli/2.1.197 (external, cli)"
        reply = await stage.request("POST", "/v1/messages", agent.body(), **sent, **headers)
        assert reply.status == 200, reply.body
        agent.add_results([(call, "a file") for call in agent.receive(reply.body)])


async def cells(page: Any, label: str) -> list[list[str]]:
    """Wait for a table, and return its texts."""
    await page.wait_for_selector(f"table[aria-label='{label}'] tbody tr", state="attached")
    found: list[list[str]] = await page.evaluate(
        "(label) => [...document.querySelector(`table[aria-label='${label}']`).tBodies[0].rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))",
        label,
    )
    return found


async def check_accessibility(page: Any) -> None:
    if not AXE.is_file():
        pytest.skip("no axe-core: python tools/fetch_axe.py")
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    found = await page.evaluate(
        "axe.run().then((all) => all.violations.map((one) =>"
        " [one.id, ...one.nodes.slice(0, 3).map((node) => node.html)]))"
    )
    assert found == []


def count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def test_page_shows_a_running_session_as_the_trace_has_it(tmp_path: Path) -> None:
    async def scene() -> None:
        writer = TraceWriter(TraceFile(tmp_path / "trace.jsonl", 0, 0))
        async with (
            serving(HttpOptions(ui=True), registry=registry(), recorders=[writer]) as stage,
            browsing() as browser,
        ):
            page = await browser.open(f"{stage.url}/ui", color_scheme="light")
            await page.wait_for_function(UNTIL_SHOWN, arg="0 in total")
            await run_agent(stage)
            await page.wait_for_function(UNTIL_SHOWN, arg=f"{TURNS} in total")
            writer.close()
            lines = read_traces([tmp_path / "trace.jsonl"]).lines
            await check_overview(page, lines)
            await check_accessibility(page)
            await page.click("nav >> text=Sessions")
            await page.wait_for_selector("table[aria-label=Sessions] a")
            await check_list(page, lines)
            await check_accessibility(page)
            await page.click(f"table[aria-label=Sessions] >> text={SESSION}")
            await page.wait_for_selector(".timeline .turn")
            await check_turns(page, lines)
            await check_accessibility(page)
            await page.click(f"table[aria-label='Turns of the session'] a >> text={TURNS}")
            await page.wait_for_selector(".turn-view")
            await check_broken_prefix(page, lines[-1])
            await check_accessibility(page)
            await browser.check(page)

    run(scene)


async def check_overview(page: Any, lines: Any) -> None:
    usages = [line.usage for line in lines]
    cached, total = sum(u.cached_tokens for u in usages), sum(u.input_tokens for u in usages)
    assert cached > 0
    text = await page.text_content("#tile-hits-detail")
    assert text == f"{count(cached)} of {count(total)} prompt tokens"
    text = await page.text_content("#tile-tokens-detail")
    assert text == f"{count(sum(u.output_tokens for u in usages))} in total"
    assert await cells(page, "Divergent prefixes by reason") == [["header", "1"]]
    (replica,) = await cells(page, "Replicas")
    assert replica[:5] == [NAME, "0", "scripted", "up", "0"]


async def check_list(page: Any, lines: Any) -> None:
    (row,) = await cells(page, "Sessions")
    usages = [line.usage for line in lines]
    assert row[:7] == [SESSION, "idle", "claude", NAME, "", "1", count(len(lines))]
    assert row[7] == count(sum(u.input_tokens for u in usages))
    assert row[8] == count(sum(u.output_tokens for u in usages))
    assert row[10] == count(sum(line.reprefilled for line in lines))
    assert row[12] == "0"


async def check_turns(page: Any, lines: Any) -> None:
    rows = await cells(page, "Turns of the session")
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        assert row[5:7] == [count(line.usage.input_tokens), count(line.usage.cached_tokens)]
        assert row[8:10] == [count(line.usage.output_tokens), count(len(line.calls))]
        assert row[10] == (line.prefix.reason or "extends")
    assert await page.locator(".timeline .turn, .timeline rect.small").count() >= 1
    waits = [line for line in lines if line.results]
    assert len(waits) == TURNS - 1


async def check_broken_prefix(page: Any, line: Any) -> None:
    """The last turn: the system text changed, so the prompt diverged."""
    parts = {row[0]: row[1] for row in await cells(page, "Parts of the prompt")}
    note = await page.text_content("[data-reason=header]")
    assert line.prefix.reason == "header"
    assert line.prefix.diverged_at == line.prefix.common > 0
    assert "The system text changed" in note
    assert f"diverged at token {count(line.prefix.diverged_at)}" in note
    assert "--volatile-pattern" in note
    changed = parts["re-prefilled: the prefix changed"]
    assert f"{changed} tokens prefilled again" in note
    shown = sum(int(tokens.replace(",", "")) for tokens in parts.values())
    assert shown == line.usage.input_tokens
    spans = [row[0] for row in await cells(page, "Output spans in order")]
    assert spans == ["reasoning", "text", "tool call"]


#: Count the changes of the document in the next two updates of the overview.
MEASURE = """async (selector) => {
  const main = document.getElementById("main");
  let changes = 0;
  const count = new MutationObserver((records) => { changes += records.length; });
  count.observe(main, {subtree: true, childList: true, characterData: true, attributes: true});
  await window.nextUpdate();
  count.disconnect();
  return [changes, document.querySelectorAll("*").length];
}"""
NEXT_UPDATE = """
window.updates = 0;
window.nextUpdate = () => new Promise((done) => {
  const start = performance.getEntriesByType("resource").length;
  const timer = setInterval(() => {
    if (performance.getEntriesByType("resource").length > start) {
      clearInterval(timer);
      requestAnimationFrame(() => setTimeout(done, 50));
    }
  }, 10);
});
"""


def test_work_of_an_update_does_not_depend_on_the_number_of_sessions() -> None:
    """The same request finishes on servers with 50 and with 500 sessions."""
    measured: dict[int, list[int]] = {}

    async def scene() -> None:
        async with browsing() as browser:
            for sessions in (50, 500):
                async with serving(HttpOptions(ui=True)) as stage:
                    measured[sessions] = await measure_update(stage, browser, sessions)

    run(scene)
    small, large = measured[50], measured[500]
    assert large[1] == small[1] < 1200  # elements
    # The changed cells of one row: a value may happen to stay the same, such as a rounded share.
    assert 0 < small[0] < 20
    assert 0 < large[0] < 20


async def measure_update(stage: Stage, browser: Browser, sessions: int) -> list[int]:
    assert stage.app.ui is not None
    now = 1_800_000_000.0
    fill(stage.app.ui, sessions, now, turns=2)
    page = await browser.open(f"{stage.url}/ui#/sessions")
    await page.wait_for_selector("table[aria-label=Sessions] a")
    await page.evaluate(NEXT_UPDATE)
    pending = page.evaluate(MEASURE)
    record = SimulatedSession(f"session-{sessions - 1:04d}", seed=sessions - 1).turn(now)
    stage.app.ui.record_request(record, RequestContents())
    result: list[int] = await pending
    await browser.check(page)
    await page.close()
    return result


def test_file_of_a_trace_shows_the_session_without_a_server(tmp_path: Path) -> None:
    file = tmp_path / "session.html"
    records = list(long_session(1_800_000_000.0))
    writer = TraceWriter(TraceFile(tmp_path / "trace.jsonl", 0, 0))
    for record in records:
        writer.record_request(record, RequestContents())
    writer.close()
    trace: Trace = read_traces([tmp_path / "trace.jsonl"])
    write_html(trace, records[0].session, file)

    async def scene() -> None:
        async with browsing() as browser:
            page = await browser.open(
                f"{file.as_uri()}#/session?turn=8",
                color_scheme="dark",
                viewport={"width": 390, "height": 844},
            )
            await page.wait_for_selector(".turn-view")
            assert "The tool list changed" in await page.text_content("[data-reason=tools]")
            await page.click("text=All turns")
            rows = await cells(page, "Turns of the session")
            assert [row[5] for row in rows] == [
                count(one.usage.input_tokens) for one in records if one.usage
            ]
            agents = await cells(page, "Agents of the session")
            assert [row[0].strip() for row in agents] == ["main", "↳ explore", "↳ run-tests"]
            await use_keyboard(page)
            await check_accessibility(page)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390
            await browser.check(page)
            await page.evaluate("document.body.setAttribute('style', 'color: red')")
            with pytest.raises(AssertionError, match="style-src"):
                await browser.check(page)

    run(scene)


AXIS = "() => [...document.querySelectorAll('.axis text')].map((one) => one.textContent).join()"


async def use_keyboard(page: Any) -> None:
    """Zoom, pan and select a turn with keys alone."""
    before = await page.evaluate(AXIS)
    await page.focus(".timeline")
    await page.keyboard.press("+")
    await page.wait_for_function(f"(before) => ({AXIS})() !== before", arg=before)
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("0")
    await page.wait_for_function(f"(before) => ({AXIS})() === before", arg=before)
    await page.keyboard.press(".")
    await page.wait_for_selector("#turn-title >> text=Turn 1 of")
    await page.click("text=All turns")


def test_page_requires_an_admin_key_and_shows_texts_only_with_payloads() -> None:
    options = HttpOptions(
        keys=ApiKeys(["top-secret"]), ui=True, ui_payloads=True, capture_payloads=True
    )

    async def scene() -> None:
        async with serving(options, registry=registry()) as stage, browsing() as browser:
            await run_agent(stage, x_api_key="top-secret")
            page = await browser.open(f"{stage.url}/ui#/session?id={SESSION}&turn={TURNS - 1}")
            await page.wait_for_selector("dialog[open]")
            assert await page.locator(".turn-view").count() == 0
            await check_accessibility(page)
            await page.fill("#key", "top-secret")
            await page.keyboard.press("Enter")
            await page.wait_for_selector(".turn-view")
            note = await page.text_content("[data-reason=header]")
            assert "Be brief" in note or "brief" in note
            await page.click("text=Show request and response")
            await page.wait_for_selector("pre.body")
            assert "Fix the empty basket." in await page.text_content("pre.body")
            expected = "console: Failed to load resource: the server responded with a status of 401"
            browser.errors = [one for one in browser.errors if not one.startswith(expected)]
            await browser.check(page)

    run(scene)

"""Real clients search the web: the server runs the search, with a stand-in for SearXNG."""

from pathlib import Path

import pytest
from claude_code import claude
from client_sandbox import Sandbox
from codex_runs import codex, codex_resume
from prefix_exactness import assert_exact
from searxng_stand_in import RESULTS, searxng
from server_setup import MODEL, QWEN3_CODER, call, server_setup, text, think, turns

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
QUERY = "alpine parrot"
SIDE_REQUEST = "Perform a web search for the query"


def test_claude_code_searches(sandbox: Sandbox, tmp_path: Path) -> None:
    """WebSearch is a side request whose only tool is the server's search."""
    script = {
        "rules": [
            {
                "when": {"text": SIDE_REQUEST},
                "turns": turns(
                    FAMILY,
                    [call("web_search", query=QUERY)],
                    [text("The kea is the only alpine parrot [1].")],
                ),
            }
        ],
        "turns": turns(
            FAMILY, [think("I search."), call("WebSearch", query=QUERY)], [text("It is the kea.")]
        ),
        "end": "fail",
    }
    setup = server_setup(tmp_path / "server", FAMILY)
    with (
        searxng() as provider,
        setup.server(script, "--web-search", f"searxng={provider.url}") as server,
    ):
        run = claude(sandbox, server.url, "Which parrot is alpine?", ENABLE_TOOL_SEARCH="false")
    assert run.result == "It is the kea."
    assert run.failed == []
    assert provider.queries == [QUERY]
    (search,) = [one["tool_use_result"] for one in run.events if one.get("tool_use_result")]
    assert search["searchCount"] == 1
    assert [page["url"] for page in search["results"][0]["content"]] == [
        result["url"] for result in RESULTS
    ]
    assert run.events[-1]["modelUsage"][MODEL]["webSearchRequests"] == 1
    called, searching, found, final = setup.generations
    assert found.prompt[: len(searching.prompt)] == searching.prompt
    assert "[1] The kea" in found.text
    assert_exact([called, final], new=1)


def test_claude_code_reports_that_no_search_is_available(sandbox: Sandbox, tmp_path: Path) -> None:
    script = {
        "turns": turns(FAMILY, [call("WebSearch", query=QUERY)], [text("I cannot search.")]),
        "end": "fail",
    }
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server(script) as server:
        run = claude(sandbox, server.url, "Which parrot is alpine?", ENABLE_TOOL_SEARCH="false")
    assert run.result == "I cannot search."
    (search,) = [one["tool_use_result"] for one in run.events if one.get("tool_use_result")]
    assert "'web_search_20250305' is not available" in str(search)


def test_codex_searches_and_continues_on_exact_turns(sandbox: Sandbox, tmp_path: Path) -> None:
    """Codex returns the search without an id; what the model read comes back sealed."""
    script = {
        "turns": turns(
            FAMILY,
            [think("I search."), call("web_search", query=QUERY)],
            [think("Found."), text("It is the kea [1].")],
            [text("You are welcome.")],
        ),
        "end": "fail",
    }
    setup = server_setup(tmp_path / "server", FAMILY)
    search = ("-c", 'web_search="live"')
    with (
        searxng() as provider,
        setup.server(script, "--web-search", f"searxng={provider.url}") as server,
    ):
        run = codex(sandbox, server.url, "Which parrot is alpine?", *search)
        again = codex_resume(sandbox, server.url, "Thanks.", *search)
    assert run.result == "It is the kea [1]."
    assert run.kinds == ["reasoning", "web_search", "reasoning"]
    assert provider.queries == [QUERY]
    assert again.result == "You are welcome."
    assert_exact(setup.generations, new=1)


def test_codex_continues_on_exact_turns_with_only_the_seal_key(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The store of the server is lost: turns and results are restored from their seals."""
    found, more = (
        turns(
            FAMILY,
            [think("I search."), call("web_search", query=QUERY)],
            [think("Found."), text("It is the kea [1].")],
        ),
        turns(FAMILY, [text("You are welcome.")]),
    )
    setup = server_setup(tmp_path / "server", FAMILY)
    search = ("-c", 'web_search="live"')
    with searxng() as provider:
        flags = ("--web-search", f"searxng={provider.url}")
        with setup.server({"turns": found, "end": "fail"}, *flags) as server:
            assert codex(sandbox, server.url, "Which parrot is alpine?", *search).result
        for path in setup.data.iterdir():
            if path.name != "seal.key":
                path.unlink()
        with setup.server({"turns": more, "end": "fail"}, *flags) as server:
            again = codex_resume(sandbox, server.url, "Thanks.", *search)
    assert again.result == "You are welcome."
    assert_exact(setup.generations, new=1, cold=[2])

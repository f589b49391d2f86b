"""The benchmarks of `docs/decisions/` run, and every page names one that exists.

A page whose decision was not measured states that it has no benchmark.
"""

import asyncio
import re
from importlib import import_module
from pathlib import Path

import pytest
from benchmarks.decisions import connection_bounds, direct_writer, token_sinks, websocket_writer

PAGES = sorted((Path(__file__).parents[1] / "docs" / "decisions").glob("[0-9]*.md"))


def test_chunks_are_written_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(direct_writer.main(50))
    assert "direct writer" in capsys.readouterr().out


def test_events_are_written_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(websocket_writer.main(50))
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_tokens_are_forwarded_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(token_sinks.main(50))
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_our_connections_buffer_less(capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(connection_bounds.main(256 << 10))
    held = [float(one) for one in re.findall(r"holds +([\d.]+)", capsys.readouterr().out)]
    assert len(held) == 2 * len(connection_bounds.KINDS)
    assert all(ours < theirs for theirs, ours in zip(held[::2], held[1::2], strict=True))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_decision_pages_name_existing_benchmarks(page: Path) -> None:
    text = page.read_text("utf-8")
    named = re.findall(r"python -m (benchmarks[\w.]*)", text)
    assert named or "This decision has no benchmark." in text
    for module in named:
        import_module(module)

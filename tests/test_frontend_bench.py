"""The frontend benchmark: its parts, and a short run."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.frontend import cases, client, cpu, tables
from benchmarks.frontend.findings import ENGINE, Findings
from benchmarks.frontend.latency import Late, arrived
from benchmarks.frontend.load import Cost, StreamRequest, missing, whole, wrk
from benchmarks.frontend.many_streams import Many, slow
from benchmarks.frontend.parts import Author, Part, call, interleaved, plain
from benchmarks.frontend.plot import plot
from benchmarks.frontend.requests import APIS, read_stream
from benchmarks.frontend.servers import dovetail_frontend, model_folder
from benchmarks.frontend.targets import Target, further_targets, targets

from dovetail_tokenizers import load_tokenizer

SVG = "{http://www.w3.org/2000/svg}"


def cost(us: float, tokens: int = 1_000_000) -> Cost:
    return Cost(tokens, 10, 1.0, cpu.Spent(us, 0.0))


def test_cpu_times_are_read_for_any_process_name() -> None:
    line = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 2 3 4 250 50 9 9 20 0 3 0 1 2 3"
    found = cpu.read_stat(line)
    assert (found.user, found.system) == (250 * cpu.TICK, 50 * cpu.TICK)
    assert found.since(cpu.Spent(1.0, 0.25)).total == pytest.approx(300 * cpu.TICK - 1.25)


def test_memory_is_read_in_bytes() -> None:
    assert cpu.read_status("Name:\tx\nVmRSS:\t  1024 kB\nThreads:\t1\n") == 1 << 20


def test_truncated_chunks_are_joined() -> None:
    raw = b"HTTP/1.1 200 OK\r\n\r\n3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n"
    assert (client.status(raw), client.dechunked(raw)) == (200, b"abcdefgh")
    assert client.dechunked(raw[:-8]) == b"abcdefg"
    assert client.status(b"") == 0


def test_events_of_one_read_have_no_gap() -> None:
    seen = client.Seen(0, 5, [10, 30, 31, 60], [4, 4, 4, 4], [1, 1, 0, 3])
    assert seen.first == 5
    assert seen.gaps == [20, 29, 0, 0]


def test_word_arrives_with_its_last_byte() -> None:
    seen = client.Seen(0, 0, [10, 20, 30], [9, 3, 5], [], b'"default"de f def')
    assert arrived(seen, "def") == 30
    with pytest.raises(ValueError, match="did not arrive"):
        arrived(seen, "other")


FRAMES = {
    "chat": [
        '{"choices":[{"delta":{"role":"assistant","content":""}}]}',
        '{"choices":[{"delta":{"content":"hi"}}]}',
        '{"choices":[{"delta":{},"finish_reason":"stop"}]}',
        "[DONE]",
    ],
    "messages": [
        '{"type":"content_block_delta","delta":{"text":"hi"}}',
        '{"type":"message_stop"}',
    ],
    "responses": [
        '{"type":"response.output_text.delta","delta":"hi"}',
        '{"type":"response.completed"}',
    ],
}


@pytest.mark.parametrize("api", APIS)
def test_text_and_end_are_found_in_a_stream(api: str) -> None:
    stream = "".join(f"event: x\ndata: {frame}\n\n" for frame in FRAMES[api])
    assert read_stream(api, stream.encode()) == ("hi", True)
    broken_off = stream[: stream.index("hi")].rpartition("\n\n")[0]
    assert read_stream(api, broken_off.encode()) == ("", False)


def test_plot_shows_every_point() -> None:
    curves = {"a & b": [(1_000.0, 8.0), (85_000.0, 8.5)], "c": [(1_000.0, 20.0), (85_000.0, 60.0)]}
    tree = ElementTree.fromstring(plot("cost", "tokens", "µs", curves))
    assert len(tree.findall(f"{SVG}circle")) == 4
    assert len(tree.findall(f"{SVG}polyline")) == 2
    words = [one.text for one in tree.findall(f"{SVG}text")]
    assert {"a & b", "c", "1k", "85k", "0", "60"} <= set(words)


def test_best_round_counts_and_targets_are_evaluated() -> None:
    found = Findings(["dovetail", "dynamo"])
    for api in APIS:
        for case in (*cases.PACED, *cases.SATURATED):
            for us in (30.0, 25.0):
                found.costs.add(("dovetail", case.name, api), cost(us))
            found.costs.add(("dynamo", case.name, api), cost(60.0))
        for length in cases.LENGTHS:
            spent = cpu.Spent(
                2_000e-6 + length * 3e-6, 0.0
            )  # the cost of a request and of its tokens
            found.costs.add(("dovetail", f"whole call {length}", api), Cost(length, 1, 1.0, spent))
        found.note_late("dovetail", api, Late(20.0, 21.5, 1.0, 2.0))
        found.behind["dovetail", api] = 0
    found.note_late(ENGINE, "completions", Late(20.0, 21.0, 1.0, 2.0))
    found.slow.append(("dovetail", "chat", Many(2_000, 1, "no end", 36.0, 90.0, 250.0)))
    found.cold = {("dovetail", "chat"): 90.0, ("dynamo", "chat"): 100.0}
    found_targets = [*targets(found), *further_targets(found)]
    plain_ones = [one for one in found_targets if "plain" in one.wanted]
    assert [one.holds for one in plain_ones] == [None, True, True, True, True]
    assert plain_ones[1].measured == "chat 0.42, messages 0.42, responses 0.42"
    inside = [one.holds for one in found_targets if "inside" in one.wanted]
    assert inside == [None, True, True, True, False, False]
    (new,) = (one for one in found_targets if "new conversation" in one.wanted)
    assert (new.measured, new.holds) == ("chat 0.90", True)
    assert (
        Target("2,000 slow streams: nothing lost", "1 lost, 36 KB per stream, p99 250 ms", False)
        in found_targets
    )
    page = tables.result(found, 2, "0.1").numbers
    assert "| 500 plain tokens, 32 streams | chat | 25.0 | 60.0 | 0.42 |" in page
    assert "| **no** |" in page
    assert found.costs.growth("dovetail", "chat") == pytest.approx(1.0)
    assert found.costs.growth("dynamo", "chat") is None
    (curve,) = tables.curves(found, "chat").values()
    assert [us for _, us in curve] == pytest.approx([3 + 2_000 / n for n in cases.LENGTHS])


def test_missing_measurements_are_reported() -> None:
    assert {one.holds for one in targets(Findings(["dovetail"]))} == {None}


def test_texts_have_about_the_requested_tokens(tmp_path: Path) -> None:
    author = Author(load_tokenizer(model_folder(tmp_path / "model")))
    assert len(author.ids(author.first_tokens(500, plain(8)))) == 500
    text = author.sized(4_500, call)
    assert len(author.ids(text)) == pytest.approx(4_500, rel=0.05)
    arguments = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert arguments["arguments"]["content"].startswith("def ")
    assert interleaved(10).count("<think>") == interleaved(10).count("<tool_call>") == 2


@pytest.mark.long
def test_short_run_measures_every_part(tmp_path: Path) -> None:
    """Each kind of load runs briefly."""
    model = model_folder(tmp_path / "model")
    author = Author(load_tokenizer(model))
    words = author.first_tokens(40, plain(1))
    parts = [Part("few", words), Part("quick", words, 200.0), Part("other", words[30:], 200.0)]
    with dovetail_frontend(parts, model, tmp_path) as frontend:
        driven = whole(frontend, StreamRequest("messages", parts[0].cue), streams=3, times=2)
        assert (driven.responses, driven.tokens) == (6, 6 * 41)
        assert driven.us > 0
        many = slow(frontend, "chat", parts[1:], streams=6, spread=0.1)
        assert (many.lost, many.first_fault) == (0, "")
        if missing() is None:
            assert wrk(
                frontend, StreamRequest("responses", parts[0].cue), streams=2, seconds=1
            ).responses

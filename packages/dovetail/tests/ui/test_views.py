"""What the page shows: parts of a prompt, explanations, rates, and the page's files."""

import itertools
import re

import pytest
from simulated_sessions import SimulatedSession, long_session

from dovetail.prompt.prefix_report import DIVERGENCE_REASONS
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import PrefixStats, RequestContents, RequestRecord
from dovetail.ui.explanation import REASONS, divide_prompt, explain_prefix
from dovetail.ui.history import SessionTotals, StoredTurn
from dovetail.ui.live import BUCKET_SECONDS, BUCKETS, LiveStatistics, build_live_view
from dovetail.ui.page import SCRIPTS, build_standalone_page, read_static_files
from dovetail.ui.session_view import build_session_view
from dovetail_model import Usage

DEFINED = re.compile(r"^(?:export )?(?:async )?(?:function|const|let|class) (\w+)", re.M)
NOTHING = RequestContents()


def request(
    prefix: PrefixStats | None, usage: Usage | None, reprefilled: int | None = 0
) -> RequestRecord:
    return RequestRecord(
        id="r", endpoint="messages", status=200, duration=3.0, prefix=prefix, usage=usage,
        reprefilled=reprefilled, decoded=0.0, prepared=1.0, first_token=2.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prefix", "cached", "reprefilled", "parts"),
    [
        (PrefixStats(80, 100), 80, 0, {"previous": 80, "new": 20}),
        (PrefixStats(80, 100), 64, 16, {"previous": 64, "evicted": 16, "new": 20}),
        (PrefixStats(0, 100, reason="first"), 60, 0, {"cached": 60, "new": 40}),
        (PrefixStats(10, 100, 70, reason="tools"), 10, 0,
         {"previous": 10, "changed": 70, "new": 20}),
        (PrefixStats(10, 50, 70, reason="history"), 10, 0, {"previous": 10, "changed": 40}),
        (PrefixStats(80, 100), 0, None, {"unreported": 80, "new": 20}),
        (PrefixStats(10, 100, 70, reason="tools"), 0, None,
         {"unreported": 10, "changed": 70, "new": 20}),
        (PrefixStats(0, 100, 30, reason="header"), 100, 0, {"cached": 100}),
    ],
)  # fmt: skip
def test_prompt_is_divided_into_parts(
    prefix: PrefixStats, cached: int, reprefilled: int | None, parts: dict[str, int]
) -> None:
    usage = Usage(input_tokens=prefix.total, cached_tokens=cached)
    found = divide_prompt(request(prefix, usage, reprefilled))
    assert {part.kind: part.tokens for part in found} == parts
    assert sum(parts.values()) == prefix.total


def test_every_reason_is_explained_with_a_remedy() -> None:
    assert set(REASONS) == set(DIVERGENCE_REASONS)
    assert all(all(texts) for texts in REASONS.values())


def test_cost_is_the_share_of_the_prefill() -> None:
    prefix = PrefixStats(20, 120, 50, reason="tools", diverged_at=20)
    (one,) = explain_prefix(request(prefix, Usage(input_tokens=120, cached_tokens=20)))
    assert (one.code, one.tokens, one.seconds) == ("tools", 50, 0.5)
    assert "token 20 of 120" in one.text


def test_eviction_is_explained_separately() -> None:
    found = explain_prefix(request(PrefixStats(80, 100), Usage(100, 5, 30), 50))
    assert [(one.code, one.tokens) for one in found] == [("evicted", 50)]


def test_unknown_reason_of_a_later_version_is_shown() -> None:
    (one,) = explain_prefix(request(PrefixStats(1, 9, reason="sunspots"), Usage(9, 0, 1)))
    assert one.title == "sunspots"


def test_session_view_links_calls_with_their_results() -> None:
    records = list(long_session(2_000_000.0))
    view = build_session_view(SessionTotals(tenant="", id="s"), map(StoredTurn, records))
    assert [turn["id"] for turn in view["turns"]] == [one.id for one in records]
    assert [agent["parent"] for agent in view["agents"]] == [None, 0, 0]
    results = {id for one in records for id in one.results}
    assert 10 < len(view["waits"]) <= len(results)  # one request overlaps with its predecessor
    for wait in view["waits"]:
        turn, later = (view["turns"][wait[name]] for name in ("turn", "result_turn"))
        assert turn["begin"] <= wait["begin"] <= wait["end"] == later["begin"]
    rows = [(turn["row"], turn["begin"], turn["end"]) for turn in view["turns"]]
    for row in {row for row, _, _ in rows}:
        own = sorted((begin, end) for at, begin, end in rows if at == row)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(own))


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_rates_forget_what_is_older_than_a_minute() -> None:
    clock, metrics = Clock(), Metrics()
    live = LiveStatistics(metrics, clock)
    session, output = SimulatedSession("s"), 0
    for _ in range(6):
        made = session.turn(clock.now - 20.0)
        assert made.usage is not None
        output += made.usage.output_tokens
        live.record_request(made, NOTHING)
    view = build_live_view(live.snapshot(), clock.now)
    assert view["rates"]["requests"] == 6 / 60
    assert view["rates"]["output"] == pytest.approx(output / 60)
    assert sum(view["series"]["output"]) == pytest.approx(output, abs=1)
    clock.now += 70.0
    view = build_live_view(live.snapshot(), clock.now)
    assert view["rates"]["requests"] == 0
    assert view["totals"].requests == 6
    clock.now += BUCKETS * BUCKET_SECONDS * 3
    view = build_live_view(live.snapshot(), clock.now)
    assert sum(view["series"]["requests"]) == 0
    assert view["first_token"]["count"] == 0


def test_latencies_of_the_window() -> None:
    clock, metrics = Clock(), Metrics()
    live = LiveStatistics(metrics, clock)
    histogram = metrics.inter_token_histogram("m")
    histogram.counts[3] = 1000  # before the window
    for _ in range(BUCKETS + 1):
        clock.now += BUCKET_SECONDS
        live.snapshot()
    histogram.counts[4] += 98
    histogram.counts[7] += 2
    view = build_live_view(live.snapshot(), clock.now)
    assert view["inter_token"]["count"] == 100
    assert 0.005 < view["inter_token"]["p50"] <= 0.01
    assert 0.03 < view["inter_token"]["p99"] <= 0.05


def test_statistics_of_processes_add_up() -> None:
    clock = Clock()
    parts = []
    for seed in range(2):
        live = LiveStatistics(Metrics(), clock)
        session = SimulatedSession(f"s{seed}")
        live.record_request(session.turn(clock.now - 9.0), NOTHING)
        live.record_request(session.turn(clock.now - 3.0, failed=True), NOTHING)
        parts.append(live.snapshot())
    parts[0].add(parts[1])
    view = build_live_view(parts[0], clock.now)
    assert (view["totals"].requests, view["totals"].failed, len(view["errors"])) == (4, 2, 2)
    assert view["first_token"]["count"] == 2


def test_scripts_of_the_page_can_be_joined() -> None:
    """The file of a trace contains all scripts as one module."""
    files = read_static_files()
    assert set(SCRIPTS) == {name for name in files if name.endswith(".js")}
    names = [name for one in SCRIPTS for name in DEFINED.findall(files[one][0].decode())]
    assert len(names) == len(set(names))
    for number, one in enumerate(SCRIPTS):
        imported = re.findall(r'from "\./(.+?)"', files[one][0].decode())
        assert set(imported) <= set(SCRIPTS[:number])


def test_data_of_a_file_cannot_end_its_element() -> None:
    page = build_standalone_page({"id": "</script><script>alert(1)</script>"}).decode()
    assert "alert(1)</script>" not in page.replace("\\u003c", "")
    assert page.count("<script") == 2
    assert "unsafe" not in page.partition("content-security-policy")[2].partition(">")[0]
    assert 'src="' not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")

"""The page of experiments contains the numbers of the result documents, and no others."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.gpu import page, plots
from benchmarks.gpu.canvas import fitting, linear, logarithmic
from benchmarks.gpu.findings import Run, named, percentile
from benchmarks.gpu.tables import tables
from benchmarks.gpu.targets import targets

SVG = "{http://www.w3.org/2000/svg}"


def case(name: str, prefilled: int, ms: float, alone: float) -> dict[str, Any]:
    """Return three rounds around a median."""
    took, by_itself = [ms - 1, ms, ms + 2], [alone - 1, alone, alone + 2]
    row = {
        "name": name,
        "rounds": 3,
        "prompt_tokens": [52_017] * 3,
        "prefilled_tokens": [prefilled] * 3,
        "client_ms": took,
        "before_ms": [1.25] * 3,
        "seam_ms": [value - 1.75 for value in took],
        "after_ms": [0.5] * 3,
        "alone_ms": by_itself,
    }
    return {"title": f"case of {name}", "rows": [row]}


def side(ledger: str, prefilled: int, ms: float) -> dict[str, Any]:
    turns: list[dict[str, Any]] = [
        {
            "turn": turn,
            "prefilled_tokens": prefilled + turn,
            "client_ms": ms + turn,
            "all": {"prefilled_tokens": [prefilled + turn] * 2, "client_ms": [ms + turn] * 2},
        }
        for turn in range(1, 4)
    ]
    total = {key: sum(turn[key] for turn in turns) for key in ("prefilled_tokens", "client_ms")}
    return {"ledger": ledger, "rounds": 2, "turns": turns, "total": total}


def rate(streams: int, via: str, middle: float) -> dict[str, Any]:
    each = [middle - 1, middle, middle + 1]
    return {"streams": streams, "via": via, "tokens_per_second": each, "median": middle}


def results(attention: str = "made_up") -> dict[str, Any]:
    """Return invented results."""
    cases = {
        "A": case("A", 61, 91.5, 89.25),
        "B": case("B", 51_811, 2_345.5, 2_340.5),
        "C": case("C", 62, 92.5, 90.75),
        "D": case("D", 171, 95.5, 93.5),
        "E": case("E", 777, 123.5, 121.5),
        "F": case("F", 172, 96.5, 94.5),
    }
    event = {"ms": [83.1, 83.2, 83.4], "engine_ms": [82.6] * 3, "behind_ms": [0.5, 0.6, 0.8]}
    call = {"api": "chat", "streams": 16, "dispatch_ms": [0.41, 0.43, 1.7], "lead_ms": [351.5]}
    return {
        "machine": {"gpu": "Imaginary 9000", "attention": attention, "commit": "abc123"},
        "settings": {"tokens": 52_000, "ttft": "as it was taken", "engine_options": {"page": 64}},
        "experiments": {
            **cases,
            "G": {
                "rows": [side("on", 131, 97.0), side("off", 1_431, 197.0)],
                "saved": {"prefilled_tokens": 3_900, "client_ms": 300.0},
            },
            "I": {"rows": [rate(1, "alone", 55.5), rate(1, "messages", 54.5)]},
            "T": {"rows": [{"event": "dispatch", **event}]},
            "H": {"rows": [call]},
        },
    }


def run_of(**changed: Any) -> Run:
    return named([{**results(), **changed}])[0]


def holding(run: Run) -> list[bool | None]:
    return [target.holds for target in targets(run)]


def test_tokens_prefilled_come_first_then_milliseconds_then_the_ratio() -> None:
    made = tables(named([results()]))["prefix"].splitlines()
    assert made[2].startswith("| A case of A | made_up | 61 | 52,017 | 91.5 | 90.5 to 93.5 | 3 |")
    assert "| 51,811 | 52,017 | 2,345.5 | 2,344.5 to 2,347.5 | 3 | 25.63x | 2,340.5 |" in made[3]
    assert made[3].endswith("| 912 ms (5.43x) | 4,828 ms (44.91x) |")
    thinking = tables(named([results()]))["thinking"].splitlines()
    assert "| 777 | 52,017 | 123.5 | 122.5 to 125.5 | 3 | 1.29x | 1.35x |" in thinking[3]
    assert "322 ms (1.93x)" in thinking[3]


def test_every_table_has_its_numbers() -> None:
    made = tables(named([results()]))
    assert "| 2 | 133 | 1,433 | 99.0 |" in made["turns"]
    assert "saves 3,900 tokens of prefill and 300.0 ms" in made["turns"]
    assert "Attention: made_up." in made["turns"]
    assert (
        "| 1 | made_up | messages | 54.5 | 53.5 to 55.5 | 3 | 0.982x | 10 | 5.5x |"
        in (made["throughput"])
    )
    assert "| dispatch | 83.2 | 83.1 to 83.4 | 3 | 82.6 | 0.60 | 800 |" in made["timeline"]
    assert "| chat | 16 | 3 | 0.43 | 1.70 | 1.70 | 351.5 | 351.5 to 351.5 |" in made["dispatch"]
    assert "| F | made_up | 1.2 | 94.8 | 0.5 | 96.5 |" in made["parts"]
    assert "| GPU | Imaginary 9000 |" in made["machine"]


def test_missing_measurements_have_no_table_and_no_plot() -> None:
    runs = named([{"machine": {}, "experiments": {}}])
    assert not any(tables(runs).values())
    assert plots.first_tokens(runs) == plots.turns(runs) == ""


def test_engine_alone_may_be_missing() -> None:
    document = results()
    for name in "ABCDEF":
        document["experiments"][name]["rows"][0].update(alone_ms=[])
    assert "| 25.63x |  |  | 912 ms" in tables(named([document]))["prefix"]
    assert holding(named([document])[0])[1] is None


def test_targets_are_met_by_suitable_figures() -> None:
    assert holding(run_of()) == [True] * 7


@pytest.mark.parametrize(
    ("experiment", "ms", "broken"),
    [
        ("C", 93.4, [0]),
        ("A", 170.0, [2]),
        ("C", 169.0, [0, 2]),
        ("F", 100.4, [3]),
        ("D", 100.7, [4]),
    ],
)
def test_targets_depend_on_the_milliseconds(experiment: str, ms: float, broken: list[int]) -> None:
    document = results()
    document["experiments"][experiment]["rows"][0]["client_ms"] = [ms] * 3
    text = holding(named([document])[0])
    assert set(broken) <= {number for number, holds in enumerate(text) if not holds}


@pytest.mark.parametrize(
    ("streams", "via", "middle", "broken"), [(1, "messages", 53.8, 5), (1, "alone", 49.9, 6)]
)
def test_targets_depend_on_the_rate(streams: int, via: str, middle: float, broken: int) -> None:
    document = results()
    row = next(row for row in document["experiments"]["I"]["rows"] if row["via"] == via)
    row["median"] = middle
    assert holding(named([document])[0])[broken] is False


def test_time_added_by_the_server_is_a_target() -> None:
    document = results()
    document["experiments"]["F"]["rows"][0]["client_ms"] = [100.0] * 3
    text = list(targets(named([document])[0]))[1]
    assert (text.holds, text.measured) == (False, "A 2.2 ms, C 1.8 ms, D 2.0 ms, F 5.5 ms")


def test_two_runs_are_compared() -> None:
    other = results("other")
    other["experiments"]["A"]["rows"][0]["client_ms"] = [107.0] * 3
    made = tables(named([results(), other]))
    assert re.findall(r"\| A case of A \| (\w+) \| 61 \| 52,017 \| (\S+) ", made["prefix"]) == [
        ("made_up", "91.5"),
        ("other", "107.0"),
    ]
    assert made["dispatch"].count("Attention: ") == 2
    assert "other" not in made["targets"]


def test_runs_of_one_attention_have_distinct_names() -> None:
    assert [run.name for run in named([results(), results(), {}])] == [
        "made_up",
        "made_up (2)",
        "no model",
    ]


@pytest.mark.parametrize("runs", [named([results()]), named([results(), results("other")])])
@pytest.mark.parametrize("draw", [plots.first_tokens, plots.turns])
def test_plots_are_svg_inside_their_frame(draw: Any, runs: list[Run]) -> None:
    drawn = ElementTree.fromstring(draw(runs))
    assert drawn.tag == f"{SVG}svg"
    _, _, width, height = map(float, drawn.attrib["viewBox"].split())
    for one in drawn.iter(f"{SVG}circle"):
        assert 0 < float(one.attrib["cx"]) < width
        assert 0 < float(one.attrib["cy"]) < height
    for one in drawn.iter(f"{SVG}text"):
        assert 0 < float(one.attrib["x"]) < width


def test_plot_shows_the_cause_and_the_published_figure() -> None:
    drawn = plots.first_tokens(named([results()]))
    assert "2,345.5 ms, 51,811 tokens prefilled" in drawn
    assert "912 ms" in drawn
    assert "milliseconds, logarithmic" in drawn
    text = plots.turns(named([results()]))
    assert text.count("ledger on</text>") == text.count("ledger off</text>") == 2


def test_scales_end_with_round_numbers() -> None:
    assert (linear([3.0, 17.0], 0, 1).high, linear([3.0, 17.0], 0, 1).low) == (20, 0)
    wide = logarithmic([91.0, 4_828.0], 0, 100)
    assert (wide.low, wide.high) == (50, 5_000)
    assert wide.ticks() == [50, 100, 200, 500, 1_000, 2_000, 5_000]
    assert wide.at(500) == pytest.approx(50)
    assert fitting([60, 50_000], 0, 1).log
    assert not fitting([60, 500], 0, 1).log


def test_percentile_is_a_measured_value() -> None:
    values = [float(number) for number in range(50, 0, -1)]
    assert (percentile(values, 0.9), percentile(values, 0.5), percentile([7.0], 0.9)) == (45, 25, 7)


def test_page_has_its_text_and_numbers_of_the_document(tmp_path: Path) -> None:
    source = tmp_path / "results.json"
    source.write_text(json.dumps(results()), "utf-8")
    page.write([source], tmp_path / "docs")
    written = (tmp_path / "docs" / "experiments.md").read_text("utf-8")
    for words in re.split(r"<!-- \w+ -->", page.FRAME):
        assert words.strip() in written
    for name, made in tables(named([results()])).items():
        assert made.strip() in written, name
    shown = re.findall(r"\((experiments/[^)]+)\)", written)
    assert len(shown) == 3
    assert all((tmp_path / "docs" / name).is_file() for name in shown)


def test_page_changes_with_the_numbers(tmp_path: Path) -> None:
    changed = deepcopy(results())
    changed["experiments"]["A"]["rows"][0]["client_ms"] = [77.7] * 3
    first, second = page.written(named([results()])), page.written(named([changed]))
    assert "77.7" not in first
    assert "| 77.7 | 77.7 to 77.7 |" in second


def test_runs_with_short_prompts_are_marked() -> None:
    text = page.written(named([results()]))
    assert "- TTFT: as it was taken.\n- engine options, attention made_up: `page=64`." in text
    assert "no results" not in text
    assert "no results" in page.written(named([{**results(), "settings": {"tokens": 2_000}}]))


def test_pipe_in_a_name_is_escaped() -> None:
    made = tables(named([results("paged|own")]))
    assert "| A case of A | paged\\|own | 61 |" in made["prefix"]


def test_sections_without_results_are_left_out() -> None:
    document = results()
    del document["experiments"]["G"], document["experiments"]["I"]
    text = page.written(named([document]))
    assert "## Interleaved turns" not in text
    assert "## Tokens per second" not in text
    assert "## The next turn" in text
    assert "<!--" not in text

"""Evaluation on a server like vLLM, with models that are perfect, weak, or do nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from eval_fixture import CLUMSY, DONE, MODEL, PERFECT, call, like_vllm, perfect, scripted, thinks
from http_fixture import run
from rich.console import Console
from server_process import qwen_folder

from dovetail.eval.agent import TaskRun
from dovetail.eval.metrics import PassMetrics
from dovetail.eval.report import METRIC_ROWS, render_html, render_terminal, to_report_json
from dovetail.eval.runner import EvalPlan, run_eval
from dovetail.eval.target import EvalOptions, EvalTarget, inspect_target
from dovetail.eval.tasks import TASKS
from dovetail.watch.reference_model import ParserNames
from dovetail_model import Sampling

SAMPLING = Sampling(max_tokens=4096, temperature=0.0, seed=0)
HERMES = ParserNames("hermes", "qwen3")
REQUESTS = sum(len(outputs) + 1 for outputs in PERFECT.values())
CALLS = sum(text.count("<tool_call>") for outputs in PERFECT.values() for text in outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return qwen_folder(tmp_path_factory.mktemp("accept") / "model")


ALL = EvalPlan(TASKS, sampling=SAMPLING)
FEW = EvalPlan(TASKS[:3], apis=("messages", "chat"), sampling=SAMPLING)


def tried(
    folder: Path,
    script: dict[str, Any],
    plan: EvalPlan,
    *,
    returns_ids: bool = True,
    **options: Any,
) -> tuple[EvalTarget, list[PassMetrics]]:
    """Run the passes of a plan on a server with scripted output."""
    found: list[tuple[EvalTarget, list[PassMetrics]]] = []
    seen: list[tuple[str, TaskRun]] = []

    async def scene() -> None:
        async with like_vllm(folder, script, returns_ids=returns_ids) as url:
            wanted = EvalOptions(url, **{"tokenizer": str(folder), "parsers": HERMES, **options})
            target = await inspect_target(wanted)
            passes = await run_eval(target, plan, lambda name, run: seen.append((name, run)))
            found.append((target, passes))

    run(scene)
    assert [name for name, _ in seen] == [one.name for one in found[0][1] for _ in plan.tasks]
    return found[0]


def test_perfect_agent_is_exact_only_with_dovetail(folder: Path) -> None:
    target, passes = tried(folder, perfect(), ALL)
    assert (target.engine, target.model) == ("vllm", MODEL)
    assert [one.name for one in passes] == ["off", "on, messages", "on, responses", "on, chat"]
    for one in passes:
        assert [line.why for line in one.done] == [""] * len(TASKS)
        assert (one.total_requests, one.faults, one.refused) == (REQUESTS, (), "")
        assert (one.calls.made, one.calls.fit_schema, one.calls.together) == (CALLS, CALLS, 10)
        assert one.prefixes.later == REQUESTS - len(TASKS)
    off, *on = (one.prefixes for one in passes)
    assert (off.exact, off.inexact, off.unknown_prompts) == (0, off.later, 0)
    assert off.causes == {"retokenization": off.later}
    assert off.again is not None
    for prefixes in on:
        assert (prefixes.exact, prefixes.unknown_prompts, prefixes.causes) == (
            prefixes.later,
            0,
            {},
        )
        assert prefixes.again is not None
        # The cache holds blocks of 16 tokens: a partial block per prompt is re-prefilled.
        assert prefixes.again <= 16 * prefixes.later
        assert off.again > 4 * prefixes.again
    text = shown(target, passes)
    assert "20 of 20 (100 %)" in text
    assert "Unknown" not in text


@pytest.mark.long
def test_unreported_values_are_unknown(folder: Path) -> None:
    """Without token ids, calls in a form that no template renders cannot be reconstructed."""
    target, passes = tried(folder, perfect(), FEW, returns_ids=False, engine="openai")
    for one in passes:
        assert one.solved_tasks == len(FEW.tasks)
        assert (one.prefixes.exact, one.prefixes.inexact) == (0, 0)
        assert one.prefixes.unknown_prompts == one.prefixes.later
        assert one.prefixes.again is None
        assert one.prefixes.computed is not None  # the server's own count
    assert "exact turns: " in shown(target, passes)
    assert to_report_json(target, passes)["passes"][0]["prefixes"]["again"] is None


@pytest.mark.long
def test_without_a_tokenizer_dovetail_sends_messages(folder: Path) -> None:
    target, passes = tried(folder, perfect(), FEW, tokenizer=None)
    assert target.engine == "openai"
    assert "--tokenizer" in target.engine_reason
    assert all(one.solved_tasks == len(FEW.tasks) for one in passes)
    assert all(one.prefixes.unknown_prompts == one.prefixes.later for one in passes)
    assert "the model's tokenizer was not found" in shown(target, passes)


@pytest.fixture(scope="module")
def weak(folder: Path) -> tuple[EvalTarget, list[PassMetrics]]:
    """Return a script with a different weakness in each of four tasks."""
    kinds = {
        "write": [*CLUMSY, DONE],
        "edit": [DONE],
        "sum": [call("write_file", path="total.txt", content="<i>109</i>"), DONE],
        "find": [thinks(call("list_files"))],
    }
    tasks = tuple(task for task in TASKS if task.id in kinds)
    return tried(folder, scripted(kinds), EvalPlan(tasks, ("messages", "chat"), sampling=SAMPLING))


@pytest.mark.long
def test_weak_models_cause_no_protocol_errors(
    weak: tuple[EvalTarget, list[PassMetrics]],
) -> None:
    for one in weak[1]:
        assert (one.solved_tasks, one.faults) == (0, ())
        assert [(line.task, line.requests, line.why) for line in one.done] == [
            ("write", 5, "notes/plan.md does not exist"),
            ("edit", 1, "no tool was called"),
            (
                "sum",
                2,
                "total.txt has unexpected content in line 1: '<i>109</i>', expected '109'",
            ),
            ("find", 12, "not done after 12 requests (found.txt does not exist)"),
        ]


def test_invalid_calls_are_counted_by_kind(weak: tuple[EvalTarget, list[PassMetrics]]) -> None:
    """One call has an unknown tool, one a wrong type, one is not JSON; the others are valid."""
    for one in weak[1]:
        calls = one.calls
        good = 1 + 1 + 12  # a path outside of the folder also matches the schema
        assert (calls.made, calls.valid_json) == (good + 3, good + 2)
        assert (calls.known_tool, calls.fit_schema) == (good + 2, good)
        assert (calls.together, calls.left_in_text) == (0, 0)


def test_weak_model_is_exact_with_dovetail(
    weak: tuple[EvalTarget, list[PassMetrics]],
) -> None:
    for one in weak[1]:
        if one.dovetail:
            assert one.prefixes.exact == one.prefixes.later == 4 + 0 + 1 + 11


def test_passes_with_the_same_failure_share_a_line(
    weak: tuple[EvalTarget, list[PassMetrics]],
) -> None:
    text = shown(*weak)
    assert "write (every pass): notes/plan.md does not exist" in text
    assert text.count("no tool was called") == 1


def test_html_report_has_all_figures_and_escapes_markup(
    weak: tuple[EvalTarget, list[PassMetrics]],
) -> None:
    page = render_html(*weak)
    assert all(row.description.replace("'", "&#39;") in page for row in METRIC_ROWS)
    assert "line 1: &#39;&lt;i&gt;109" in page
    assert "<i>" not in page
    assert page.count("not solved, 12 requests") == len(weak[1])


def shown(target: EvalTarget, passes: Sequence[PassMetrics]) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(render_terminal(target, passes))
    return captured.get()

"""Evaluation of llama.cpp's real server with SmolLM2: there are no protocol errors."""

import pytest
from http_fixture import run
from llama_server import llama_server
from llamacpp_environment import need_weights

from dovetail.eval.metrics import PassMetrics
from dovetail.eval.report import build_notes
from dovetail.eval.runner import EvalPlan, run_eval
from dovetail.eval.target import EvalOptions, EvalTarget, inspect_target
from dovetail.eval.tasks import TASKS
from dovetail_model import Sampling


@pytest.mark.long
def test_llama_cpp_silently_omits_tools_for_this_model() -> None:
    need_weights()
    found: list[tuple[EvalTarget, list[PassMetrics]]] = []

    async def scene() -> None:
        with llama_server(n_ctx=8192) as url:
            subject = await inspect_target(EvalOptions(url))
            plan = EvalPlan(
                TASKS[:1], ("messages",), max_requests=2, sampling=Sampling(max_tokens=8)
            )
            found.append((subject, await run_eval(subject, plan, lambda name, run: None)))

    run(scene)
    ((subject, passes),) = found
    assert subject.engine == "openai"
    assert [(one.faults, one.refused, one.total_requests) for one in passes] == [((), "", 1)] * 2
    assert all(one.prefixes.computed is not None for one in passes)
    assert len(dict(build_notes(subject, passes))["Tools"]) == 2

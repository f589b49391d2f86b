"""Dovetail's kernels in Triton's interpreter: alone, in models, and in transformers' batching."""

import asyncio
import json
import os
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest
from step_fixture import import_path
from torch_environment import PYTHON, build, need_torch

from dovetail.engines.engine import EngineRequest
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions
from dovetail_model import EngineUnavailable, Sampling

pytestmark = pytest.mark.transformers

HEADS = {"heads": 8, "kv_heads": 2, "size": 32, "page": 16}
TRIALS: dict[str, dict[str, Any]] = {
    "single tokens": {"sequences": [(1, 70), (1, 5), (1, 130)], "single": True, **HEADS},
    "single tokens, split and padded": {
        "sequences": [(1, 700), (1, 5)], "single": True, "splits": 16, "padding": 2, **HEADS,
    },
    "runs of tokens": {"sequences": [(5, 70), (33, 33), (1, 130)], "single": False, **HEADS},
    "runs of tokens, split and padded": {
        "sequences": [(5, 770), (33, 33), (1, 130)], "single": False, "splits": 8, "padding": 4,
        **HEADS,
    },
    "a page longer than a tile, an odd size": {
        "sequences": [(20, 20), (7, 150)], "heads": 6, "kv_heads": 2, "size": 24, "page": 64,
        "single": False,
    },
    "a run that torch's own attention would take on a GPU": {
        "sequences": [(1030, 1040)], "heads": 2, "kv_heads": 1, "size": 16, "page": 64,
        "single": False,
    },
    "seven heads to a key": {
        "sequences": [(40, 300)], "heads": 7, "kv_heads": 1, "size": 64, "page": 64,
        "single": False, "splits": 4,
    },
}  # fmt: skip
PROMPTS = [list(range(100, 140)), list(range(1500, 1590)), [*range(100, 140), *range(9, 60)]]
OUTPUT_TOKENS = 4


def test_kernels_match_plain_attention() -> None:
    found = _run("attention_checks.py", json.dumps(list(TRIALS.values())))
    errors = dict(zip(TRIALS, found, strict=True))
    assert {name: error for name, error in errors.items() if not error < 1e-5} == {}


@pytest.mark.long
def test_operations_are_fused_only_where_results_agree() -> None:
    """Gemma's norm adds one to its weights, and GLM rotates neighbours instead of halves."""
    found = _run("fusion_checks.py")
    assert {name: error for name in found if not (error := found[name].pop("error")) < 1e-5} == {}
    assert found == {
        "Qwen3": {"norms": 9, "rotations": 1},
        "Llama": {"norms": 5, "rotations": 1},
        "Gemma2": {"norms": 0, "rotations": 1},
        "Glm4": {"norms": 9, "rotations": 0},
    }


@pytest.mark.long
def test_batched_outputs_match_single_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test prompts in several steps, single tokens by pages, and a cached prefix."""
    need_torch()
    expected = build(tmp_path, [(prompt, OUTPUT_TOKENS) for prompt in PROMPTS])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    engine = TransformersEngine(
        tmp_path,
        options=TransformersOptions(
            python=PYTHON, attention="dovetail", cache_tokens=4096, page_size=16,
            max_batch_tokens=64, threads=1,
        ),
    )  # fmt: skip

    async def outputs() -> list[tuple[Any, ...]]:
        await engine.start()
        try:
            facts = (await engine.health()).facts or {}
            assert facts["attention"] == "dovetail"
            first = await _generate(engine, PROMPTS[0])
            return [first, *await asyncio.gather(*[_generate(engine, ids) for ids in PROMPTS])]
        finally:
            await engine.stop()

    found = asyncio.run(outputs())
    assert [ids for ids, _ in found] == [expected[0], *expected]
    assert [cached for _, cached in found] == [0, 32, 0, 32]


@pytest.mark.long
def test_kernels_are_rejected_without_a_gpu(tmp_path: Path) -> None:
    need_torch()
    shape = {"model_type": "qwen3", "num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    options = TransformersOptions(
        python=PYTHON, attention="dovetail", load_format="dummy", device_map="cpu", threads=1
    )
    engine = TransformersEngine(tmp_path, options=options)
    with pytest.raises(
        EngineUnavailable, match="`attention` cannot be 'dovetail': the model is on cpu"
    ):
        asyncio.run(engine.start())


def _run(script: str, given: str = "") -> Any:
    """Return the output of a script in the interpreter that has torch."""
    need_torch()
    done = subprocess.run(
        [PYTHON, str(Path(__file__).parents[2] / "support" / script)],
        input=given + "\n",
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


async def _generate(engine: TransformersEngine, prompt: list[int]) -> tuple[Any, ...]:
    request = EngineRequest(
        f"{len(prompt)}",
        array("I", prompt),
        max_tokens=OUTPUT_TOKENS,
        sampling=Sampling(temperature=0.0),
    )
    deltas = [delta async for delta in iter_deltas(engine, request)]
    cached = [delta.cached for delta in deltas if delta.cached is not None]
    return [id for delta in deltas for id in delta.ids], *cached

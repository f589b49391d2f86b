"""`dovetail demo --live`: the embedded model with its adapter fixes a function."""

import asyncio
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from server_process import WEIGHTS

from dovetail.demo.live import MODEL, run_live_demo
from dovetail.server.build import build_service
from dovetail.settings.config import Config


@pytest.mark.long
@pytest.mark.timeout(300)
def test_function_is_fixed_with_exact_turns(tmp_path: Path) -> None:
    if not WEIGHTS.exists():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2.gguf").symlink_to(WEIGHTS)
    config = Config(model=MODEL, slots=1, threads=1, store="memory", data_dir=tmp_path)
    shown = StringIO()
    solved = asyncio.run(run_live_demo(Console(file=shown, width=100), build_service(config)))
    text = shown.getvalue()
    assert solved, text
    assert text.count("previous prompt and turn: exact") == 2
    assert "return width * height" in text
    assert "The function is correct: yes" in text

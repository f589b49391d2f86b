"""`dovetail serve` for measurements: Qwen3's template and tokenizer with the scripted engine."""

import json
import sys
from pathlib import Path

from benchmarks.gpu.bundle import lay_out_model

NAME = "some-org/some-model"


def prepare_model(folder: Path) -> Path:
    """Create a model folder without weights, and next to it the script for its engine."""
    call = {"name": "look", "arguments": {"place": "here"}}
    text = f"<think>\nI look.\n</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    script = {"turns": [{"text": text}], "end": "last"}
    (folder / "script.yaml").write_text(json.dumps(script))
    return lay_out_model(folder / "model")


def arguments(folder: Path, model: Path) -> list[str]:
    """Return the command of a server on a free port, with its data in the folder."""
    return [
        *(sys.executable, "-m", "dovetail", "serve", str(model), "--engine", "scripted"),
        *("--script", str(folder / "script.yaml"), "--served-model-name", NAME),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
        *("--data-dir", str(folder / "data"), "--http-port", "0"),
    ]

"""LoRA adapters of the transformers engine: what is merged, and which adapters are rejected."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_tasks import EXPECTED_CALLS, MODEL, request_calls, write_agent_folder
from scripted_fixture import TOKENIZER
from server_process import served
from step_fixture import import_path
from tiny_qwen3 import tiny_lora, tiny_qwen3
from torch_environment import PYTHON, need_torch

from dovetail.engines.registry import EngineSetup, EngineSetupError, create_engine
from dovetail.engines.transformers.child.adapter import UnsupportedAdapter, merge_adapter

#: The oracle adds the output of the adapter to that of each layer, and merges nothing.
_COMPARE = """
import json, sys
for name in ("torchaudio", "torchcodec", "torchvision"):
    sys.modules[name] = None
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from dovetail.engines.transformers.child.adapter import merge_adapter

def load():
    return AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()

folder = Path(sys.argv[2])
config = json.loads((folder / "adapter_config.json").read_text())
scale = config["lora_alpha"] / config["r"]
tensors = load_file(folder / "adapter_model.safetensors")
ids = torch.arange(100, 140).unsqueeze(0)
plain, merged, added = load(), load(), load()
merge_adapter(merged, folder)
for name, a in tensors.items():
    if ".lora_A." in name:
        module = name.removeprefix("base_model.model.").partition(".lora_A.")[0]
        b = tensors[name.replace("lora_A", "lora_B")]
        added.get_submodule(module).register_forward_hook(
            lambda layer, given, output, a=a, b=b: output + scale * (given[0] @ a.T @ b.T)
        )
with torch.no_grad():
    expected, got, without = (model(ids).logits for model in (added, merged, plain))
print(json.dumps([(expected - got).abs().max().item(), (expected - without).abs().max().item()]))
"""


def adapter(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "`peft_type` must be LORA, got 'IA3'"),
        ({"use_dora": True}, "`use_dora` is not supported, got True"),
        ({"rank_pattern": {"q_proj": 4}}, "`rank_pattern` is not supported"),
        ({"bias": "all"}, "`bias` must be none, got 'all'"),
        ({}, "it has no adapter_model.safetensors"),
    ],
)
def test_unsupported_adapters_are_rejected(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedAdapter, match=message):
        merge_adapter(None, adapter(tmp_path / "adapter", **changes))


def test_folder_without_an_adapter_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    options = {"adapter": str(tmp_path)}
    with pytest.raises(EngineSetupError, match=r"not a folder with adapter_config\.json"):
        create_engine("transformers", EngineSetup(TOKENIZER, tmp_path, options=options))


@pytest.mark.transformers
@pytest.mark.timeout(300)
def test_merged_adapter_computes_what_separate_matrices_do(tmp_path: Path) -> None:
    need_torch()
    model, folder = tiny_qwen3(tmp_path / "model"), tiny_lora(tmp_path / "adapter", 1)
    config = json.loads((folder / "adapter_config.json").read_text())
    # A scale that is not 1, and that leaves the logits small enough to compare them.
    (folder / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 0.25}))
    done = subprocess.run(
        [PYTHON, "-c", _COMPARE, str(model), str(folder)],
        env={"PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    difference, effect = json.loads(done.stdout.splitlines()[-1])
    assert difference < 1e-3 * effect


@pytest.mark.transformers
@pytest.mark.timeout(600)
def test_adapter_of_the_embedded_model_makes_tool_calls(tmp_path: Path) -> None:
    need_torch()
    write_agent_folder(PYTHON, tmp_path)
    options = (f"python={PYTHON}", f"adapter={tmp_path / 'adapter'}", "device_map=cpu", "threads=1")
    flags = [flag for option in options for flag in ("--engine-option", option)]
    flags += ["--engine", "transformers", "--served-model-name", MODEL, "--temperature", "0"]
    with served(tmp_path / "model", *flags) as server:
        assert request_calls(server) == EXPECTED_CALLS

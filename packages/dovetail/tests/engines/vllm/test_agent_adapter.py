"""The adapter of the embedded model in the embedded vLLM, as a LoRA module."""

import os
from pathlib import Path

from agent_tasks import EXPECTED_CALLS, MODEL, request_calls, write_agent_folder
from server_process import served
from vllm_environment import ENVIRONMENT, PYTHON, REAL

pytestmark = REAL


def test_adapter_of_the_embedded_model_makes_tool_calls(tmp_path: Path) -> None:
    write_agent_folder(os.environ[PYTHON], tmp_path)
    options = {
        "python": os.environ[PYTHON],
        "lora_modules": f"{MODEL}={tmp_path / 'adapter'}",
        "max_lora_rank": "32",
        "dtype": "float32",
        "enforce_eager": "true",
        "max_num_seqs": "4",
    }
    flags = [
        flag for name, value in options.items() for flag in ("--engine-option", f"{name}={value}")
    ]
    flags += ["--engine", "vllm", "--served-model-name", "smollm2", "--temperature", "0"]
    # Waiting threads of OpenMP use the cores that other processes need.
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    with served(tmp_path / "model", *flags, environment=environment) as server:
        names = [model.id for model in server.openai().models.list()]
        assert names == ["smollm2", MODEL]
        assert request_calls(server) == EXPECTED_CALLS
        assert request_calls(server, "smollm2") == []  # without the adapter

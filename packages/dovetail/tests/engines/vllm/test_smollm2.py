"""A trained model on a real vLLM, through the SDKs: SmolLM2 responds and ends its own turns.

Its weights are a GGUF file, which vLLM does not read: transformers first converts it to a folder.
"""

import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from recording_proxy import Recorder, recording
from server_process import WEIGHTS, Running, served
from vllm_environment import PYTHON, REAL, running_vllm

pytestmark = REAL

NAME = "smollm2"
QUESTION = "What is the capital of France? Answer in one sentence."
EXPECTED_TEXT = "The capital of France is Paris."
CONVERT = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, name, target = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
model.hf_quantizer = model.quantization_method = None  # its numbers are plain ones by now
model.is_quantized = False
del model.config.quantization_config
model.save_pretrained(target)
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    if not WEIGHTS.is_file():
        pytest.skip("no SmolLM2 at hand: make tokenizers")
    place = tmp_path_factory.mktemp("smollm2")
    folder = _converted(place / "model")
    flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details")
    with running_vllm(folder, place, *flags) as vllm, recording(vllm.port) as recorder:
        yield recorder


def _converted(target: Path) -> Path:
    command = [os.environ[PYTHON], "-c", CONVERT, str(WEIGHTS.parent), WEIGHTS.name, str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"SmolLM2 cannot be converted: {done.stderr.strip().splitlines()[-1]}")
    return target


@pytest.fixture(scope="module")
def server(recorder: Recorder) -> Iterator[Running]:
    with served("--engine", "vllm", "--engine-url", recorder.url, "--temperature", "0") as running:
        yield running


def test_messages(server: Running) -> None:
    client = server.anthropic()
    with client.messages.stream(
        model=NAME, max_tokens=60, messages=[{"role": "user", "content": QUESTION}]
    ) as stream:
        message = stream.get_final_message()
    assert [block.text for block in message.content if block.type == "text"] == [EXPECTED_TEXT]
    assert message.stop_reason == "end_turn"


def test_chat(server: Running) -> None:
    response = server.openai().chat.completions.create(
        model=NAME, max_tokens=60, messages=[{"role": "user", "content": QUESTION}]
    )
    assert response.choices[0].message.content == EXPECTED_TEXT
    assert response.choices[0].finish_reason == "stop"


def test_responses(server: Running) -> None:
    response = server.openai().responses.create(model=NAME, max_output_tokens=60, input=QUESTION)
    assert response.output_text == EXPECTED_TEXT
    assert response.status == "completed"


def test_turns_that_the_model_ends_are_exact(server: Running, recorder: Recorder) -> None:
    """This template retains every turn, also after another user message."""
    start = len(recorder.completions)
    history: list[dict[str, str]] = []
    for question in ("Name a color.", "Another one.", "And a third one.", "Thank you!"):
        history.append({"role": "user", "content": question})
        response = server.openai().chat.completions.create(
            model=NAME,
            max_tokens=60,
            messages=history,  # type: ignore[arg-type]
            temperature=1.0,
            seed=4,
        )
        history.append({"role": "assistant", "content": response.choices[0].message.content or ""})
    completions = recorder.completions[start:]
    assert "stop" in {one.finish for one in completions}
    for before, after in pairwise(completions):
        known = before.prompt + before.generated
        assert after.prompt[: len(known)] == known

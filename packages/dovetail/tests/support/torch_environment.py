"""A tiny model with random weights and a real tokenizer, for an interpreter that has torch.

The tests' own interpreter does not need torch: DOVETAIL_TORCH_PYTHON names another one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from real_models import TOKENIZERS

PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON", "")
WINDOW = 4096
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

#: The weights are large enough that the most likely token changes from position to position.
_BUILD = """
import sys
for name in ("torchaudio", "torchcodec", "torchvision"):
    sys.modules[name] = None
import json
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

folder, window, prompts = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=151936, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=window,
    tie_word_embeddings=False, initializer_range=0.5, eos_token_id=151645, bos_token_id=None,
)
Qwen3ForCausalLM(config).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
outputs = []
for prompt, count in prompts:
    given = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=count,
            do_sample=False, eos_token_id=-1, pad_token_id=151643,
        )
    outputs.append(out[0, len(prompt):].tolist())
print(json.dumps(outputs))
"""

#: One output line per input line of ids and a position: the logprobs of the ids from that position
#: on in a plain forward pass, and the most likely tokens at each position.
_FORWARD = """
import sys
for name in ("torchaudio", "torchcodec", "torchvision"):
    sys.modules[name] = None
import json
import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
for line in sys.stdin:
    ids, start, best, spelled = json.loads(line)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, start - 1 : -1]
    known = logits.log_softmax(-1)
    sampled = known.gather(1, torch.tensor(ids[start:]).unsqueeze(1)).squeeze(1)
    top = known[:, :spelled].topk(best)
    print(json.dumps([sampled.tolist(), top.indices.tolist(), top.values.tolist()]), flush=True)
"""


def need_torch() -> None:
    """Skip the test if no interpreter with torch is named, or the tokenizer is missing."""
    if not PYTHON:
        pytest.skip("DOVETAIL_TORCH_PYTHON names no interpreter with torch: run make test-vllm")
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("the qwen3 tokenizer is not available: run make tokenizers")


def build(folder: Path, prompts: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
    """Create the model in a folder, and return its greedy outputs for prompts."""
    done = subprocess.run(
        [PYTHON, "-c", _BUILD, str(folder), str(WINDOW)],
        input=json.dumps([(list(prompt), count) for prompt, count in prompts]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for file in (TOKENIZERS / "qwen3").iterdir():
        shutil.copy(file, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    outputs: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return outputs


class ForwardResult(NamedTuple):
    """The logprobs of ids, and the most likely ids with theirs at each position."""

    logprobs: list[float]
    best: list[list[tuple[int, float]]]


class ForwardProcess:
    """A plain forward pass of a model, in a separate process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, ids: Sequence[int], start: int, best: int, spelled: int) -> ForwardResult:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([list(ids), start, best, spelled]) + "\n")
        self._process.stdin.flush()
        sampled, ids_of, values = json.loads(self._process.stdout.readline())
        pairs = zip(ids_of, values, strict=True)
        return ForwardResult(sampled, [list(zip(*pair, strict=True)) for pair in pairs])


@contextmanager
def forward(folder: Path) -> Iterator[ForwardProcess]:
    """Start a process that has the model of a folder."""
    command = [PYTHON, "-c", _FORWARD, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield ForwardProcess(process)

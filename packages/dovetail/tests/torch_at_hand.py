"""A tiny model with random weights and a real tokenizer, for an interpreter that has torch.

The tests' own interpreter needs none: DOVETAIL_TORCH_PYTHON names another one.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from models_at_hand import TOKENIZERS

PYTHON = os.environ.get("DOVETAIL_TORCH_PYTHON", "")
WINDOW = 4096
TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

#: Weights are large enough that the likeliest token changes from place to place.
_BUILD = """
import sys
for name in ("torchaudio", "torchcodec", "torchvision"):
    sys.modules[name] = None
import json
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

folder, window, asked = sys.argv[1], int(sys.argv[2]), json.load(sys.stdin)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=151936, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=window,
    tie_word_embeddings=False, initializer_range=0.5, eos_token_id=151645, bos_token_id=None,
)
Qwen3ForCausalLM(config).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
answers = []
for prompt, count in asked:
    given = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=count,
            do_sample=False, eos_token_id=-1, pad_token_id=151643,
        )
    answers.append(out[0, len(prompt):].tolist())
print(json.dumps(answers))
"""


def need_torch() -> None:
    """Skips where no interpreter with torch is named, or the tokenizer is missing."""
    if not PYTHON:
        pytest.skip("DOVETAIL_TORCH_PYTHON names no interpreter with torch: make test-vllm")
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("no tokenizer qwen3 at hand: make tokenizers")


def build(folder: Path, asked: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
    """Lays the model out in a folder, and gives its own greedy answers to prompts."""
    done = subprocess.run(
        [PYTHON, "-c", _BUILD, str(folder), str(WINDOW)],
        input=json.dumps([(list(prompt), count) for prompt, count in asked]),
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
    answers: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return answers

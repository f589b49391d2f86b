"""Models without weights: a real template with a real tokenizer.

If no tokenizer of a family is available, another one is used with the family's markers added as
special tokens. Such a pair is called a surrogate, here and in reports.
"""

import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from dovetail.models.loader import Model, load_model

ROOT = Path(__file__).parents[4]
TOKENIZERS = ROOT / ".cache" / "tokenizers"
TEMPLATES = Path(os.environ.get("DOVETAIL_TEMPLATES") or ROOT.parent / "shared/data/templates")


@dataclass(frozen=True)
class Pair:
    """A template and a tokenizer. `added` are the markers of a surrogate's family."""

    name: str
    template: str
    tokenizer: str
    tool_parser: str
    reasoning_parser: str = "none"
    stops: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def surrogate(self) -> bool:
        return bool(self.added)


_GEMMA: tuple[str, ...] = (
    "<|turn>",
    "<turn|>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<|tool_response>",
    "<tool_response|>",
    "<|channel>",
    "<channel|>",
    "<|think|>",
)
_MINIMAX = ("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>")
_NEMOTRON = ("<SPECIAL_12>",)

PAIRS = (
    Pair("Qwen3", "Qwen-Qwen3-0.6B", "qwen3", "hermes", "qwen3", ("<|im_end|>",)),
    Pair("Qwen3-Coder", "Qwen3-Coder", "qwen3", "qwen3_coder", "none", ("<|im_end|>",)),
    Pair("Qwen3.5", "Qwen3.5-4B", "qwen3_5", "qwen3_coder", "qwen3", ("<|im_end|>",)),
    Pair("Qwen2.5", "Qwen-Qwen2.5-7B-Instruct", "qwen2_5", "hermes", "none", ("<|im_end|>",)),
    Pair(
        "DeepSeek-V3.1",
        "deepseek-ai-DeepSeek-V3.1",
        "deepseek_v3",
        "deepseek_v3_1",
        "deepseek_v3_1",
        ("<｜end▁of▁sentence｜>",),
    ),
    Pair(
        "GLM-4.7",
        "GLM-4.7-Flash",
        "glm4_5",
        "glm47",
        "glm45",
        ("<|user|>", "<|observation|>", "<|endoftext|>"),
    ),
    Pair("Kimi-K2", "Kimi-K2-Instruct", "kimi_k2", "kimi_k2", "none", ("<|im_end|>",)),
    Pair("Kimi-K2-Thinking", "Kimi-K2-Thinking", "kimi_k2", "kimi_k2", "kimi_k25", ("<|im_end|>",)),
    Pair(
        "gpt-oss",
        "openai-gpt-oss-120b",
        "gpt_oss",
        "harmony",
        "gpt_oss",
        ("<|return|>", "<|call|>"),
    ),
    Pair(
        "Llama-3.1",
        "meta-llama-Llama-3.1-8B-Instruct",
        "llama3",
        "llama3_json",
        "none",
        ("<|eot_id|>", "<|eom_id|>"),
    ),
    Pair(
        "Llama-3.2",
        "meta-llama-Llama-3.2-3B-Instruct",
        "llama3_2",
        "llama3_json",
        "none",
        ("<|eot_id|>", "<|eom_id|>"),
    ),
    Pair("Devstral", "unsloth-mistral-Devstral-Small-2507", "mistral_tekken", "mistral"),
    Pair("Mistral-Nemo", "mistralai-Mistral-Nemo-Instruct-2407", "mistral_nemo", "mistral"),
    Pair(
        "Ministral-3",
        "mistralai-Ministral-3-14B-Reasoning-2512",
        "mistral_tekken",
        "mistral",
        "mistral",
    ),
    Pair("Gemma-4", "google-gemma-4-31B-it", "gemma3", "gemma4", "gemma4", ("<turn|>",), _GEMMA),
    Pair("MiniMax-M2", "MiniMax-M2", "qwen3", "minimax_m2", "minimax_m2", ("[e~[",), _MINIMAX),
    Pair(
        "Nemotron-3",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "qwen2_5",
        "qwen3_coder",
        "nemotron_v3",
        ("<|im_end|>",),
        ("<think>", "</think>"),
    ),
)


def available() -> list[Pair]:
    """Return the pairs whose template and tokenizer are available."""
    return [
        pair
        for pair in PAIRS
        if (TOKENIZERS / pair.tokenizer).is_dir() and _template(pair).is_file()
    ]


def require(pair: Pair) -> None:
    """Skip a test whose pair is not available."""
    if not (TOKENIZERS / pair.tokenizer).is_dir():
        pytest.skip(f"the tokenizer {pair.tokenizer} is not available: run make tokenizers")
    if not _template(pair).is_file():
        pytest.skip(f"the template {pair.template} is not available: set DOVETAIL_TEMPLATES")


@cache
def model(pair: Pair) -> Model:
    """Load the pair as a served model, from a folder with Hugging Face's layout."""
    folder = Path(mkdtemp(prefix="dovetail-"))
    try:
        lay_out(pair, folder)
        return load_model(
            folder, tool_parser=pair.tool_parser, reasoning_parser=pair.reasoning_parser
        )
    finally:
        shutil.rmtree(folder)


def _template(pair: Pair) -> Path:
    return TEMPLATES / f"{pair.template}.jinja"


def lay_out(pair: Pair, folder: Path) -> None:
    for file in (TOKENIZERS / pair.tokenizer).iterdir():
        shutil.copy(file, folder)
    shutil.copy(_template(pair), folder / "chat_template.jinja")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    config.pop("chat_template", None)
    if pair.stops:
        config["eos_token"] = pair.stops[0]
    path.write_text(json.dumps(config))
    if pair.added:
        _add(folder / "tokenizer.json", pair.added)


def _add(path: Path, markers: tuple[str, ...]) -> None:
    definition = json.loads(path.read_text())
    known = {token["content"] for token in definition["added_tokens"]}
    top = max(token["id"] for token in definition["added_tokens"])
    edges = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    for at, marker in enumerate(m for m in markers if m not in known):
        token = {"id": top + 1 + at, "content": marker, "special": True, **edges}
        definition["added_tokens"].append(token)
    path.write_text(json.dumps(definition))

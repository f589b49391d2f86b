"""The server that the clients run against: the real one, with a scripted model.

The model's turns are written in a real family's notation and tokenized by its real tokenizer; its
template renders the prompts. The engine records its requests, which the tests check.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from generation_log import read_generation_log
from real_models import TEMPLATES, TOKENIZERS
from server_process import Running, served

from dovetail.engines.scripted.engine import RecordedGeneration
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers import resolve_family, write_message

MODEL = "some-org/some-model"
WINDOW = 200_000


@dataclass(frozen=True)
class Family:
    """A family of models: its template, tokenizer and parsers. The template may be the tokenizer's.

    `eos` are the spellings that end its turns; `opens` is the text with which its template opens
    them, after `turn_start`.
    """

    name: str
    template: str
    tokenizer: str
    tool_parser: str
    reasoning_parser: str
    eos: tuple[str, ...]
    opens: str = ""
    turn_start: str = "<|im_start|>assistant"

    @property
    def call_marker(self) -> str:
        """The text with which every tool call starts."""
        return self.spell(call("NAME")).partition("NAME")[0].lstrip()

    def spell(self, *blocks: OutputBlock) -> str:
        """Return a turn as the model would generate it, in the order of its blocks."""
        family = resolve_family(self.tool_parser)
        assert family is not None
        return write_message(blocks, family).removeprefix(self.opens)


QWEN3_CODER = Family("Qwen3-Coder", "Qwen3-Coder", "qwen3", "qwen3_coder", "qwen3", ("<|im_end|>",))
QWEN3_5 = Family(
    "Qwen3.5", "Qwen3.5-4B", "qwen3_5", "qwen3_coder", "qwen3", ("<|im_end|>",), "<think>\n"
)
KIMI = Family(
    "Kimi-K2",
    "Kimi-K2-Thinking",
    "kimi_k2",
    "kimi_k2",
    "kimi_k25",
    ("<|im_end|>",),
    turn_start="<|im_assistant|>assistant",
)
GPT_OSS = Family(
    "gpt-oss",
    "openai-gpt-oss-120b",
    "gpt_oss",
    "harmony",
    "gpt_oss",
    ("<|return|>", "<|call|>"),
    turn_start="<|start|>assistant",
)


def assert_refuses_web_pages(server: Running) -> None:
    """Check that the server, which has no keys, refuses foreign hosts and origins."""
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert server.request("GET", "/v1/models", None, **headers).status == 403
    assert server.request("GET", "/v1/models").status == 200


def think(content: str) -> ReasoningBlock:
    return ReasoningBlock(content)


def text(content: str) -> TextBlock:
    return TextBlock(content)


def call(name: str, **arguments: Any) -> ToolCallBlock:
    """Return a call as a model writes it. The server assigns its id."""
    return ToolCallBlock("", name, json.dumps(arguments, ensure_ascii=False))


def create_model_folder(family: Family, folder: Path, window: int = WINDOW) -> Path:
    """Create a model folder in Hugging Face's layout, without weights."""
    source = TOKENIZERS / family.tokenizer
    if not source.is_dir():
        pytest.skip(f"no tokenizer {family.tokenizer} at hand: make tokenizers")
    shutil.copytree(source, folder)
    template = TEMPLATES / f"{family.template}.jinja"
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    if template.is_file():
        shutil.copy(template, folder / "chat_template.jinja")
        config.pop("chat_template", None)
    elif "chat_template" not in config:
        pytest.skip(f"no template {family.template} at hand: set DOVETAIL_TEMPLATES")
    path.write_text(json.dumps({**config, "eos_token": family.eos[0]}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": window}))
    return folder


@dataclass(frozen=True)
class ServerSetup:
    """Successive servers with the same model and the same data folder."""

    folder: Path
    family: Family
    window: int = WINDOW

    @property
    def data(self) -> Path:
        """The server's data folder: the ledger and keys."""
        return self.folder / "data"

    @property
    def generations(self) -> list[RecordedGeneration]:
        """Every generation of the engine, over all servers of this setup."""
        generations = read_generation_log(self.folder / "record.jsonl")
        return sorted(generations, key=lambda one: one.began)

    @contextmanager
    def server(self, script: Any, *flags: str) -> Iterator[Running]:
        """Run a server with this script (see docs/scripts.md) for the time of the block."""
        model, path = self.folder / "model", self.folder / "script.yaml"
        if not model.is_dir():
            create_model_folder(self.family, model, self.window)
        self.data.mkdir(exist_ok=True)
        path.write_text(json.dumps(script))
        record = f"record={self.folder / 'record.jsonl'}"
        with served(
            model,
            *("--engine", "scripted", "--script", str(path), "--engine-option", record),
            *("--tool-call-parser", self.family.tool_parser),
            *("--reasoning-parser", self.family.reasoning_parser),
            *("--served-model-name", MODEL, "--data-dir", str(self.data), "--log-prefix", *flags),
            home=self.data,
        ) as running:
            yield running


CREATED: list[ServerSetup] = []
"""The setups of this test session, for the report at its end."""


def server_setup(folder: Path, family: Family, window: int = WINDOW) -> ServerSetup:
    folder.mkdir(parents=True, exist_ok=True)
    CREATED.append(ServerSetup(folder, family, window))
    return CREATED[-1]


def turns(family: Family, *outputs: Sequence[OutputBlock], **more: Any) -> list[dict[str, Any]]:
    """Return turns of a script in the family's notation, with its end tokens."""
    if len(family.eos) == 1:  # of several end tokens, the script's text has the right one
        more = {"stop": family.eos[0], **more}
    return [{"text": family.spell(*blocks), **more} for blocks in outputs]

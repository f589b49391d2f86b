"""Models loaded from folders and files, with real tokenizers and templates where available."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from real_models import TEMPLATES, TOKENIZERS

from dovetail.models.loader import Model, ModelLoadError, load_model
from dovetail_model import Sampling


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a model folder with the tokenizer and the template of Qwen3, in the hub layout."""
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("no tokenizer qwen3 at hand: make tokenizers")
    made = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "0a1b"
    made.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZERS / "qwen3" / name, made)
    return made


def _write(folder: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)


def test_tokenizer_and_template_are_sufficient(folder: Path) -> None:
    model = load_model(folder)
    assert model.name == "Qwen/Qwen3-0.6B"
    assert (model.tool_parser, model.reasoning_parser) == ("hermes", "qwen3")
    assert model.parsers.source == "model id"
    assert {"<|im_end|>", "<|endoftext|>"} == set(model.stop_strings)
    assert {model.tokenizer.controls[stop] for stop in model.stop_strings} == model.stop_ids
    assert {"<think>", "</think>", "<tool_call>"} <= set(model.tokenizer.controls)
    assert model.profile.keeps_in_loop
    assert model.self_test.ok
    assert model.chat_template is model.tool_chat_template
    assert model.switches == {"enable_thinking": True, "truncate_history_thinking": False}


def test_config_values_are_read(folder: Path) -> None:
    _write(folder, "config.json", {"max_position_embeddings": 40960, "eos_token_id": 1})
    generation = {"eos_token_id": [151645, 151643], "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    _write(folder, "generation_config.json", generation)
    model = load_model(folder, switches={"extra": 1})
    assert model.context_length == 40960
    assert model.stop_ids == {151643, 151645}
    assert model.sampling == Sampling(temperature=0.6, top_k=20, top_p=0.95)
    assert model.switches["extra"] == 1


def test_the_context_length_of_a_nested_config_is_read(folder: Path) -> None:
    _write(folder, "config.json", {"text_config": {"max_position_embeddings": 7}})
    assert load_model(folder).context_length == 7


def test_flags_select_the_parsers(folder: Path) -> None:
    model = load_model(folder, tool_parser="qwen3_coder")
    assert (model.tool_parser, model.reasoning_parser) == ("qwen3_coder", "qwen3")
    assert model.parsers.source == "flags"
    assert not model.self_test.ok
    assert any("do not match" in warning for warning in model.warnings)
    bare = load_model(folder, tool_parser="none", reasoning_parser="none")
    assert (bare.tool_parser, bare.reasoning_parser) == (None, None)
    assert bare.switches == {}


def test_a_unified_tool_parser_selects_its_reasoning_parser(folder: Path) -> None:
    model = load_model(folder, tool_parser="harmony")
    assert model.reasoning_parser == "gpt_oss"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"tool_parser": "hermess"}, "Did you mean 'hermes'"),
        ({"tool_parser": "harmony", "reasoning_parser": "qwen3"}, "are incompatible"),
        ({"custom_template": Path("missing.jinja")}, "missing.jinja"),
    ],
)
def test_invalid_flags_are_rejected(folder: Path, flags: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason):
        load_model(folder, **flags)


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{% if %}", "is invalid"), ("{{ nothing.at_all }}", "cannot render one user message")],
)
def test_invalid_templates_are_rejected(folder: Path, template: str, reason: str) -> None:
    _write(folder, "chat_template.jinja", template)
    with pytest.raises(ModelLoadError, match=reason):
        load_model(folder)


def test_two_templates(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    listed = [
        {"name": "default", "template": plain},
        {"name": "tool_use", "template": config["chat_template"]},
    ]
    _write(folder, "tokenizer_config.json", {**config, "chat_template": listed})
    model = load_model(folder)
    assert model.chat_template.template.text == plain
    assert model.profile.renders_tools


def test_a_model_without_a_template_is_served(folder: Path) -> None:
    _write(folder, "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    model = load_model(folder, reasoning_parser="none")
    assert any("ChatML" in warning for warning in model.warnings)
    assert model.self_test.ok


@pytest.mark.long
def test_fingerprints(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "Qwen3-copy")
    model = load_model(folder)
    assert model.fingerprint == load_model(copy).fingerprint
    other = load_model(folder, tool_parser="qwen3_coder")
    assert other.fingerprint != model.fingerprint
    _write(copy, "chat_template.jinja", model.template.text + " ")
    assert load_model(copy).fingerprint != model.fingerprint


@pytest.mark.parametrize(
    ("made", "reason"),
    [(None, "no such file"), ("file", "a folder or a .gguf file"), ("folder", "tokenizer")],
)
def test_missing_models_are_reported(tmp_path: Path, made: str | None, reason: str) -> None:
    path = tmp_path / "model"
    if made == "file":
        path.write_text("x")
    if made == "folder":
        path.mkdir()
    with pytest.raises(ModelLoadError, match=reason):
        load_model(path)


def _gguf() -> Model:
    path = TOKENIZERS / "smollm2" / "smollm2.gguf"
    if not path.is_file():
        pytest.skip("no GGUF file at hand: make tokenizers")
    return load_model(path)


def test_a_gguf_file() -> None:
    model = _gguf()
    assert model.context_length == 8192
    assert model.template_source.origin == "GGUF metadata"
    assert "<|im_end|>" in model.stop_strings
    assert (model.tool_parser, model.reasoning_parser) == ("hermes", None)
    assert not model.profile.renders_tools
    assert model.self_test.ok


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="no folder of chat templates at hand")
@pytest.mark.parametrize(
    ("tokenizer", "template", "stops"),
    [
        ("gpt_oss", "openai-gpt-oss-120b", {"<|return|>", "<|call|>", "<|endoftext|>"}),
        ("glm4_5", "GLM-4.7-Flash", {"<|user|>", "<|observation|>", "<|endoftext|>"}),
        ("kimi_k2", "Kimi-K2-Instruct", {"<|im_end|>"}),
    ],
)
def test_stop_tokens(tmp_path: Path, tokenizer: str, template: str, stops: set[str]) -> None:
    if not (TOKENIZERS / tokenizer).is_dir():
        pytest.skip(f"no tokenizer {tokenizer} at hand: make tokenizers")
    folder = shutil.copytree(TOKENIZERS / tokenizer, tmp_path / "model")
    shutil.copy(TEMPLATES / f"{template}.jinja", folder / "chat_template.jinja")
    assert stops <= set(load_model(folder).stop_strings)
    assert "<|end|>" not in load_model(folder).stop_strings

"""The sources of templates, and the fallback text for parts that they do not render."""

import json
from pathlib import Path
from typing import Any

import pytest
from real_models import TEMPLATES

from dovetail.models.files import (
    CHATML_TEMPLATE,
    ModelFilesError,
    read_folder_templates,
    read_gguf_templates,
)
from dovetail.models.template_probe import probe_template
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail.prompt.tool_fallback import (
    format_fallback_calls,
    format_fallback_tools,
    needs_fallback,
    to_plain_messages,
)
from dovetail_parsers import parse


def _folder(root: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_json", ".json").replace("_jinja", ".jinja")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def test_the_template_of_the_tokenizer_config_is_read(tmp_path: Path) -> None:
    config = {
        "chat_template": "T",
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": False},
        "pad_token": None,
        "add_bos_token": True,
    }
    source = read_folder_templates(_folder(tmp_path, tokenizer_config_json=config))
    assert (source.default, source.for_tools, source.origin) == ("T", "T", "tokenizer_config.json")
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_named_templates(tmp_path: Path) -> None:
    listed = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
    source = read_folder_templates(
        _folder(tmp_path, tokenizer_config_json={"chat_template": listed})
    )
    assert (source.default, source.for_tools) == ("D", "U")


def test_template_files_take_precedence_over_the_config(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        tokenizer_config_json={"chat_template": "old"},
        chat_template_jinja="D",
        additional_chat_templates__tool_use_jinja="U",
        chat_template_json={"chat_template": "older"},
    )
    source = read_folder_templates(folder)
    assert (source.default, source.for_tools, source.origin) == ("D", "U", "chat_template.jinja")


def test_the_old_processor_file_is_read(tmp_path: Path) -> None:
    source = read_folder_templates(_folder(tmp_path, chat_template_json={"chat_template": "P"}))
    assert (source.default, source.origin) == ("P", "chat_template.json")


def test_special_tokens_of_the_old_map_are_read(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        special_tokens_map_json={"bos_token": "<old>", "eos_token": {"content": "<e>"}},
        tokenizer_config_json={"bos_token": "<new>", "chat_template": "T"},
    )
    assert read_folder_templates(folder).special_tokens == {
        "bos_token": "<new>",
        "eos_token": "<e>",
    }


def test_a_custom_template_takes_precedence(tmp_path: Path) -> None:
    folder = _folder(tmp_path, chat_template_jinja="D", mine_jinja="M", tokenizer_config_json={})
    mine = folder / "mine.jinja"
    assert read_folder_templates(folder, mine).default == "M"
    assert read_gguf_templates({"tokenizer.chat_template": "G"}, mine).default == "M"
    with pytest.raises(ModelFilesError, match=r"missing\.jinja"):
        read_folder_templates(folder, folder / "missing.jinja")


def test_a_model_without_a_template_uses_chatml_with_a_warning(tmp_path: Path) -> None:
    source = read_folder_templates(tmp_path)
    assert source.default == CHATML_TEMPLATE
    assert source.warnings
    shown = ChatTemplate(CHATML_TEMPLATE).render([{"role": "user", "content": "hi"}])
    assert shown == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("content", ["{", "[]"])
def test_errors_name_an_invalid_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelFilesError, match=r"tokenizer_config\.json"):
        read_folder_templates(tmp_path)


def test_gguf_metadata() -> None:
    source = read_gguf_templates(
        {
            "tokenizer.chat_template": "D",
            "tokenizer.chat_template.tool_use": "U",
            "tokenizer.chat_templates": ["tool_use"],
            "tokenizer.ggml.tokens": ["<s>", "</s>", "a"],
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
            "tokenizer.ggml.padding_token_id": 99,
        }
    )
    assert source.templates == {"default": "D", "tool_use": "U"}
    assert source.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert read_gguf_templates({}).default == CHATML_TEMPLATE


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "1", "function": {"name": "look", "arguments": {"at": 'é "x"'}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": "I will.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "a tree"},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "a bush"}]},
]


def test_fallback_tool_text_matches_its_parser() -> None:
    for parser in ("hermes", "deepseek_v3", "llama3_json", "mistral"):
        offer = format_fallback_tools([TOOL], parser)
        assert json.dumps(TOOL) in offer
        written = format_fallback_calls([("look", {"at": 'é "x"'}), ("look", '{"at": 1}')], parser)
        calls = [b for b in parse(written, tool_parser=parser).blocks if b.type == "tool_call"]
        assert [json.loads(c.arguments) for c in calls] == [{"at": 'é "x"'}, {"at": 1}]
        assert format_fallback_calls([("function_name", {"argument": "value"})], parser) in offer
    assert format_fallback_tools([]) == ""


def test_a_conversation_as_text() -> None:
    bare = TemplateProfile(renders_tools=False, renders_calls=False, renders_results=False)
    user, assistant, results = to_plain_messages(CONVERSATION, [], bare)
    assert user == CONVERSATION[0]
    assert assistant["content"].startswith("I will.\n<tool_call>")
    assert "tool_calls" not in assistant
    assert results["role"] == "user"
    assert results["content"].count("<tool_response>") == 2
    system, *rest = to_plain_messages(
        [{"role": "system", "content": "Be."}, *CONVERSATION], [TOOL], bare
    )
    assert system["content"].startswith("Be.\n\nYou may call")
    assert len(rest) == 3


def test_tools_are_described_without_a_system_message() -> None:
    bare = TemplateProfile(renders_tools=False, system="refused")
    first = to_plain_messages(CONVERSATION, [TOOL], bare)[0]
    assert first["role"] == "user"
    assert first["content"].endswith("Look.")


def test_parts_rendered_by_the_template_are_unchanged() -> None:
    assert to_plain_messages(CONVERSATION, [TOOL], TemplateProfile()) == CONVERSATION
    assert not needs_fallback(TemplateProfile())
    only_tools = TemplateProfile(renders_tools=False)
    assert needs_fallback(only_tools)
    assert to_plain_messages(CONVERSATION, [TOOL], only_tools)[1:] == CONVERSATION


@pytest.mark.skipif(not TEMPLATES.is_dir(), reason="no folder of chat templates at hand")
@pytest.mark.parametrize("name", ["google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"])
def test_templates_without_tools_render_the_fallback(name: str) -> None:
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), {"bos_token": "<BOS>"})
    text = template.render(to_plain_messages(CONVERSATION, [TOOL], probe_template(template)))
    assert all(part in text for part in ("<tools>", "<tool_call>", "a tree", "a bush"))

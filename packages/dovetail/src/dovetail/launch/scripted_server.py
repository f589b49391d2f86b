"""A Dovetail server with the scripted engine, for verification without any model files.

The model has a byte tokenizer and a small chat template, both defined here.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dovetail_verify.scripted.scenarios import render_script, resolve_parser_names

MODEL_NAME = "some-org/some-model"  # with a slash, like most model names
PARSER_FAMILY = "qwen3_coder"
CONTEXT_TOKENS = 65536
CONTROL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class ScriptedServer:
    """Arguments of `dovetail serve`, and the file in which its engine records requests."""

    arguments: tuple[str, ...]
    record_path: Path
    model: str = MODEL_NAME


def prepare_scripted_server(folder: Path) -> ScriptedServer:
    """Write the files that the server needs into a folder and return its arguments."""
    model, script, record = folder / "model", folder / "script.yaml", folder / "record.jsonl"
    model.mkdir()
    _byte_tokenizer().save(str(model / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT_TOKENS}))
    script.write_text(render_script(PARSER_FAMILY), "utf-8")
    tool_parser, reasoning_parser = resolve_parser_names(PARSER_FAMILY)
    settings = {
        "engine": "scripted",
        "script": str(script),
        "engine-option": f"record={record}",
        "served-model-name": MODEL_NAME,
        "tool-call-parser": tool_parser,
        "reasoning-parser": reasoning_parser,
        "data-dir": str(folder),
        "http-port": "0",
    }
    flags = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return ScriptedServer((str(model), *flags), record)


def _byte_tokenizer() -> Tokenizer:
    """Build a tokenizer with one token per byte, and the control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={one: at for at, one in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL_TOKENS])
    return tokenizer

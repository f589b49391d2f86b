"""The demo's model: a tokenizer of bytes and a small template, with no weights behind them."""

from pathlib import Path

from dovetail.models.files import TemplateSource
from dovetail.models.loader import Model, ModelParsers, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.prompt.template import ChatTemplate
from dovetail_model import Sampling
from dovetail_tokenizers import ByteTokenizer

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
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>tool
{{ message.content }}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build_demo_model() -> Model:
    """A model that keeps its thoughts and writes calls as Qwen3-Coder does."""
    tokenizer = ByteTokenizer(CONTROL_TOKENS)
    template = ChatTemplate(CHAT_TEMPLATE)
    speech = ProbedTemplate(template, probe_template(template))
    return Model(
        name="demo",
        path=Path("demo"),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": CHAT_TEMPLATE}, {}, "demo"),
        chat_template=speech,
        tool_chat_template=speech,
        parsers=ModelParsers("qwen3_coder", "qwen3", "demo"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=32768,
        sampling=Sampling(),
    )

"""The model and the script of the demo: a recorded agent session, generated without weights."""

import secrets
from importlib.resources import as_file, files
from pathlib import Path

from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, load_script
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.files import TemplateSource
from dovetail.models.loader import Model, ModelParsers, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import TokenModel
from dovetail.prompt.template import ChatTemplate
from dovetail.routing.pool import ReplicaPool
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
    """Build a model whose template preserves reasoning, with tool calls as in Qwen3-Coder."""
    tokenizer = ByteTokenizer(CONTROL_TOKENS)
    template = ChatTemplate(CHAT_TEMPLATE)
    probed = ProbedTemplate(template, probe_template(template))
    return Model(
        name="demo",
        path=Path("demo"),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": CHAT_TEMPLATE}, {}, "demo"),
        chat_template=probed,
        tool_chat_template=probed,
        parsers=ModelParsers("qwen3_coder", "qwen3", "demo"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=32768,
        sampling=Sampling(),
    )


def build_demo_entry(rate: float, log: Path) -> TokenModel:
    """Build what the demo serves. `rate`: tokens per second. `log`: receives all token ids."""
    model = build_demo_model()
    with as_file(files("dovetail.demo")) as folder:
        script = load_script(folder / "session.yaml")
    options = ScriptedOptions(decode_rate=rate, record=str(log))
    engine = ScriptedEngine(model.tokenizer, script, options=options)
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([secrets.token_bytes(32)]))
    return TokenModel(("demo",), model, preparer, ReplicaPool([engine]))

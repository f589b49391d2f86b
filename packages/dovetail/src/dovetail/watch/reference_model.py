"""The served model's tokenizer and template, if they are available on this machine.

With them, prompts are counted in the model's own tokens. Without them, a fallback counts one token
per four bytes, which is sufficient for comparisons and always reported as an estimate.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.models.files import TemplateSource
from dovetail.models.hub import HUB_ID_PATTERN, find_cached_model
from dovetail.models.loader import Model, ModelLoadError, ModelParsers, ProbedTemplate, load_model
from dovetail.models.template_probe import probe_template
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail.prompt.template import ChatTemplate
from dovetail_model import EngineError, Sampling
from dovetail_parsers import markers, resolve_family
from dovetail_tokenizers import ByteTokenizer

BYTES_PER_TOKEN = 4
LISTING_TIMEOUTS = Timeouts(connect=2.0, read=5.0)
_MAX_MODEL_NAMES = 256  # clients choose them

_FALLBACK_TEMPLATE = """\
{%- macro offered() %}{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% endmacro %}
{%- if not messages or messages[0].role != 'system' %}{{ offered() }}{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% if loop.first and message.role == 'system' %}{{ offered() }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_CONTROL_TOKENS = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class ReferenceModel:
    """A model to render prompts with. `has_tokenizer` is False for the fallback.

    `tool_parser` parses calls which a server left in the text, if one is known.
    """

    model: Model
    has_tokenizer: bool
    origin: str
    tool_parser: str | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`, in the format of vLLM and others."""

    id: str
    root: str | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ListedModel] = []


async def fetch_listed_models(
    endpoint: Endpoint, key: str | None = None
) -> tuple[ListedModel, ...]:
    """Fetch the models that a server lists; none if it does not respond."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = ClientRequest("GET", "/v1/models", headers=headers, timeouts=LISTING_TIMEOUTS)
    try:
        status, body = await fetch(endpoint, request)
        if status != 200:
            return ()
        return tuple(msgspec.json.decode(body, type=_ModelList).data)
    except (EngineError, msgspec.DecodeError, UnicodeError):
        return ()


@dataclass(frozen=True)
class ParserNames:
    """Parsers chosen by the user; None for the model's own."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None


class ReferenceModels:
    """The reference model of each model name, loaded on first use.

    `named` is the user's choice: it is used for every model.
    """

    def __init__(
        self,
        named: ReferenceModel | None = None,
        listed: tuple[ListedModel, ...] = (),
        parsers: ParserNames | None = None,
    ) -> None:
        self._named = named
        self._listed = {one.id: one for one in listed}
        self._parsers = parsers or ParserNames()
        self._found: dict[str, ReferenceModel] = {}
        # By parser family: clients may send any model name.
        self._fallbacks: dict[str | None, ReferenceModel] = {}
        self.warnings: list[str] = []

    def get(self, name: str) -> ReferenceModel:
        if self._named is not None:
            return self._named
        reference = self._found.get(name)
        if reference is None:
            reference = self._load(name)
            if len(self._found) < _MAX_MODEL_NAMES:
                self._found[name] = reference
        return reference

    def _load(self, name: str) -> ReferenceModel:
        listed = self._listed.get(name)
        if listed is None and len(self._listed) == 1:
            listed = next(iter(self._listed.values()))  # an alias, most likely
        roots = [listed.root, listed.id] if listed is not None else []
        for root in dict.fromkeys([*filter(None, roots), name]):
            path = _find_local(root)
            if path is None:
                continue
            try:
                return load_reference(path, self._parsers)
            except ModelLoadError as error:
                if len(self.warnings) < _MAX_MODEL_NAMES:
                    self.warnings.append(str(error))
        fallback = build_fallback(name)
        return self._fallbacks.setdefault(fallback.tool_parser, fallback)


def build_fallback(name: str = "") -> ReferenceModel:
    """Build a fallback for a model whose files are missing; its name may reveal the family."""
    family = resolve_family(name) if name else None
    marker_tokens = markers("hermes", "qwen3")
    tokenizer = ByteTokenizer((*_CONTROL_TOKENS, *sorted(marker_tokens)))
    template = ChatTemplate(_FALLBACK_TEMPLATE)
    probed = ProbedTemplate(template, probe_template(template, {}))
    model = Model(
        name=name,
        path=Path(),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": _FALLBACK_TEMPLATE}),
        chat_template=probed,
        tool_chat_template=probed,
        parsers=ModelParsers("hermes", "qwen3", "stand-in"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=None,
        sampling=Sampling(),
    )
    return ReferenceModel(model, False, "", family.tool_parser if family is not None else None)


def load_reference(path: Path, parsers: ParserNames | None = None) -> ReferenceModel:
    """Load a model's folder or GGUF file. Raises `ModelLoadError`."""
    names = parsers or ParserNames()
    model = load_model(path, tool_parser=names.tool_parser, reasoning_parser=names.reasoning_parser)
    return ReferenceModel(model, True, str(path), model.tool_parser)


def _find_local(root: str) -> Path | None:
    """Find a model's folder or file, locally or in the Hub cache. Nothing is downloaded."""
    try:
        path = Path(root).expanduser()
        if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
            return path
    except (OSError, RuntimeError):  # too long for a name, or an unknown user's home
        return None
    return find_cached_model(root) if HUB_ID_PATTERN.fullmatch(root) else None

"""The model that a server serves, as far as it can be had on this machine: tokenizer and template.

With them prompts are counted in its own tokens. Without them a plain stand-in measures text, a
token for every four bytes: good enough to compare, and always called an estimate.
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
_MAX_MODEL_NAMES = 256  # of models; it is clients who name them

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
    """How the prompts of a model are looked at. `real` is False for the stand-in.

    `family` is the parser that reads calls which a server left in the text, where one is known.
    """

    model: Model
    has_tokenizer: bool
    origin: str
    tool_parser: str | None = None


class ListedModel(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`, as vLLM and others write it."""

    id: str
    root: str | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[ListedModel] = []


async def fetch_listed_models(
    endpoint: Endpoint, key: str | None = None
) -> tuple[ListedModel, ...]:
    """What a server says it serves; nothing where it does not say."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    call = ClientRequest("GET", "/v1/models", headers=headers, timeouts=LISTING_TIMEOUTS)
    try:
        status, body = await fetch(endpoint, call)
        if status != 200:
            return ()
        return tuple(msgspec.json.decode(body, type=_ModelList).data)
    except (EngineError, msgspec.DecodeError, UnicodeError):
        return ()


@dataclass(frozen=True)
class ParserNames:
    """The parsers that the user names; None leaves them to the model."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None


class ReferenceModels:
    """A lens for each model name, found when it is first asked for.

    `named` is what the user named: it counts for every model.
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
        self._fallbacks: dict[
            str | None, ReferenceModel
        ] = {}  # by family: clients may name anything
        self.warnings: list[str] = []

    def get(self, name: str) -> ReferenceModel:
        if self._named is not None:
            return self._named
        found = self._found.get(name)
        if found is None:
            found = self._load(name)
            if len(self._found) < _MAX_MODEL_NAMES:
                self._found[name] = found
        return found

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
        made = build_fallback(name)
        return self._fallbacks.setdefault(made.tool_parser, made)


def build_fallback(name: str = "") -> ReferenceModel:
    """A model of which nothing is known but perhaps its family, by its name."""
    family = resolve_family(name) if name else None
    known = markers("hermes", "qwen3")
    tokenizer = ByteTokenizer((*_CONTROL_TOKENS, *sorted(known)))
    template = ChatTemplate(_FALLBACK_TEMPLATE)
    speech = ProbedTemplate(template, probe_template(template, {}))
    model = Model(
        name=name,
        path=Path(),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": _FALLBACK_TEMPLATE}),
        chat_template=speech,
        tool_chat_template=speech,
        parsers=ModelParsers("hermes", "qwen3", "stand-in"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=None,
        sampling=Sampling(),
    )
    return ReferenceModel(model, False, "", family.tool_parser if family is not None else None)


def load_reference(path: Path, parsers: ParserNames | None = None) -> ReferenceModel:
    """The lens of a model's folder or GGUF file. Raises `CatalogError`."""
    told = parsers or ParserNames()
    model = load_model(path, tool_parser=told.tool_parser, reasoning_parser=told.reasoning_parser)
    return ReferenceModel(model, True, str(path), model.tool_parser)


def _find_local(root: str) -> Path | None:
    """A model's folder, or its place in the hub's cache. Nothing is downloaded."""
    try:
        path = Path(root).expanduser()
        if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
            return path
    except (OSError, RuntimeError):  # too long for a name, or in the home of nobody
        return None
    return find_cached_model(root) if HUB_ID_PATTERN.fullmatch(root) else None

"""The model that a server serves, as far as it can be had on this machine: tokenizer and template.

With them prompts are counted in its own tokens. Without them a plain stand-in measures text, a
token for every four bytes: good enough to compare, and always called an estimate.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.models.files import TemplateSource
from dovetail.models.hub import HUB_ID_PATTERN, find_cached_model
from dovetail.models.loader import ModelLoadError, Model, ModelParsers, ProbedTemplate, load_model
from dovetail.models.template_probe import probe_template
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail.prompt.rendering_template import ChatTemplate
from dovetail_model import EngineError, Sampling
from dovetail_parsers import markers, resolve
from dovetail_tokenizers import ByteTokenizer

BYTES_OF_A_TOKEN = 4
PATIENCE = Timeouts(connect=2.0, read=5.0)
_MOST_NAMES = 256  # of models; it is clients who name them

_STAND_IN = """\
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
_ENDS = ("<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Lens:
    """How the prompts of a model are looked at. `real` is False for the stand-in.

    `family` is the parser that reads calls which a server left in the text, where one is known.
    """

    model: Model
    real: bool
    origin: str
    family: str | None = None


class ServedModel(msgspec.Struct, frozen=True):
    """An entry of `/v1/models`, as vLLM and others write it."""

    id: str
    root: str | None = None


class _Listing(msgspec.Struct, frozen=True):
    data: list[ServedModel] = []


async def served_models(endpoint: Endpoint, key: str | None = None) -> tuple[ServedModel, ...]:
    """What a server says it serves; nothing where it does not say."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    call = ClientRequest("GET", "/v1/models", headers=headers, timeouts=PATIENCE)
    try:
        status, body = await fetch(endpoint, call)
        if status != 200:
            return ()
        return tuple(msgspec.json.decode(body, type=_Listing).data)
    except (EngineError, msgspec.DecodeError, UnicodeError):
        return ()


@dataclass(frozen=True)
class Notation:
    """The parsers that the user names; None leaves them to the model."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None


class Lenses:
    """A lens for each model name, found when it is first asked for.

    `named` is what the user named: it counts for every model.
    """

    def __init__(
        self,
        named: Lens | None = None,
        listed: tuple[ServedModel, ...] = (),
        notation: Notation | None = None,
    ) -> None:
        self._named = named
        self._listed = {one.id: one for one in listed}
        self._notation = notation or Notation()
        self._found: dict[str, Lens] = {}
        self._stand_ins: dict[str | None, Lens] = {}  # by family: clients may name anything
        self.notes: list[str] = []

    def of(self, name: str) -> Lens:
        if self._named is not None:
            return self._named
        found = self._found.get(name)
        if found is None:
            found = self._find(name)
            if len(self._found) < _MOST_NAMES:
                self._found[name] = found
        return found

    def _find(self, name: str) -> Lens:
        listed = self._listed.get(name)
        if listed is None and len(self._listed) == 1:
            listed = next(iter(self._listed.values()))  # an alias, most likely
        roots = [listed.root, listed.id] if listed is not None else []
        for root in dict.fromkeys([*filter(None, roots), name]):
            path = _at_hand(root)
            if path is None:
                continue
            try:
                return read_lens(path, self._notation)
            except ModelLoadError as error:
                if len(self.notes) < _MOST_NAMES:
                    self.notes.append(str(error))
        made = stand_in(name)
        return self._stand_ins.setdefault(made.family, made)


def stand_in(name: str = "") -> Lens:
    """A model of which nothing is known but perhaps its family, by its name."""
    family = resolve(name) if name else None
    known = markers("hermes", "qwen3")
    tokenizer = ByteTokenizer((*_ENDS, *sorted(known)))
    template = ChatTemplate(_STAND_IN)
    speech = ProbedTemplate(template, probe_template(template, {}))
    model = Model(
        name=name,
        path=Path(),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": _STAND_IN}),
        chat_template=speech,
        tool_chat_template=speech,
        parsers=ModelParsers("hermes", "qwen3", "stand-in"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=None,
        sampling=Sampling(),
    )
    return Lens(model, False, "", family.tool_parser if family is not None else None)


def read_lens(path: Path, notation: Notation | None = None) -> Lens:
    """The lens of a model's folder or GGUF file. Raises `CatalogError`."""
    told = notation or Notation()
    model = load_model(path, tool_parser=told.tool_parser, reasoning_parser=told.reasoning_parser)
    return Lens(model, True, str(path), model.tool_parser)


def _at_hand(root: str) -> Path | None:
    """A model's folder, or its place in the hub's cache. Nothing is downloaded."""
    try:
        path = Path(root).expanduser()
        if path.is_dir() or (path.suffix == ".gguf" and path.is_file()):
            return path
    except (OSError, RuntimeError):  # too long for a name, or in the home of nobody
        return None
    return find_cached_model(root) if HUB_ID_PATTERN.fullmatch(root) else None

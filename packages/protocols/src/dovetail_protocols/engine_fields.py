"""Fields that engines add to the APIs: guided decoding, stop tokens and token biases.

Clients of vLLM, SGLang and llama.cpp send them to any API, under the names of their engine.
"""

from typing import Annotated, Any

import msgspec

from dovetail_model import InvalidRequest, OutputFormat, Sampling, Unsupported
from dovetail_protocols.fields import Field
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.request_body import convert

_GUIDED = "Constrains the visible output"
_MAX_BIAS = 100.0

ENGINE_FIELDS = (
    Field("guided_json", "constraint", {"type": "object"}, f"vLLM: {_GUIDED} to a JSON schema."),
    Field("guided_regex", "constraint", "[0-9]+", f"vLLM: {_GUIDED} to a regular expression."),
    Field("guided_choice", "constraint", ["yes", "no"], f"vLLM: {_GUIDED} to one of these texts."),
    Field(
        "guided_grammar", "constraint", 'root ::= "yes"', f"vLLM: {_GUIDED} to EBNF (GBNF) or Lark."
    ),
    Field(
        "structured_outputs",
        "constraint",
        {"regex": "[0-9]+"},
        "vLLM: an object with one of the following.",
    ),
    Field("structured_outputs.json", "constraint", {"type": "object"}, "Like `guided_json`."),
    Field("structured_outputs.json_object", "constraint", True, "Any JSON object."),
    Field("structured_outputs.regex", "constraint", "[0-9]+", "Like `guided_regex`."),
    Field("structured_outputs.choice", "constraint", ["yes", "no"], "Like `guided_choice`."),
    Field("structured_outputs.grammar", "constraint", 'root ::= "yes"', "Like `guided_grammar`."),
    Field("structured_outputs.structural_tag", "constraint", "{}", "", "rejected"),
    Field(
        "grammar",
        "constraint",
        'root ::= "yes"',
        f"llama.cpp: {_GUIDED} to GBNF.",
        neutral=("",),
    ),
    Field("json_schema", "constraint", {"type": "object"}, "llama.cpp: like `guided_json`."),
    Field("regex", "constraint", "[0-9]+", "SGLang: like `guided_regex`."),
    Field("ebnf", "constraint", 'root ::= "yes"', "SGLang: like `guided_grammar`."),
    Field(
        "min_tokens",
        "stop",
        8,
        "The response has at least this many tokens. vLLM, SGLang, transformers.",
        "engine",
        (0,),
    ),
    Field(
        "ignore_eos",
        "stop",
        True,
        "The end-of-turn token does not end the response. vLLM, SGLang, llama.cpp, transformers.",
        "engine",
        (False,),
    ),
    Field("stop_token_ids", "stop", [7], "These tokens end the response.", neutral=([],)),
    Field(
        "logit_bias",
        "sampling",
        {"7": -100},
        "A bias of -100 to 100 per token id. vLLM, SGLang, llama.cpp.",
        "engine",
        ({},),
    ),
    Field("guided_decoding_backend", "hint", "xgrammar", "The engine chooses.", "reported"),
    Field("guided_whitespace_pattern", "hint", "[ ]?", "", "reported"),
    Field("allowed_token_ids", "sampling", [7], "", "rejected", ([],)),
    Field("bad_words", "sampling", ["no"], "", "rejected", ([],)),
    Field("use_beam_search", "sampling", True, "", "rejected", (False,)),
    Field("length_penalty", "sampling", 2.0, "", "rejected", (1.0,)),
    Field("logits_processors", "sampling", ["x"], "", "rejected", ([],)),
    Field("custom_logit_processor", "sampling", "x", "", "rejected"),
    Field("typical_p", "sampling", 0.5, "", "rejected", (1.0,)),
    Field("mirostat", "sampling", 2, "", "rejected", (0,)),
    Field("dynatemp_range", "sampling", 0.5, "", "rejected", (0,)),
    Field("dry_multiplier", "sampling", 0.8, "", "rejected", (0,)),
    Field("xtc_probability", "sampling", 0.5, "", "rejected", (0,)),
    Field("top_n_sigma", "sampling", 1.0, "", "rejected", (-1,)),
    Field("samplers", "sampling", ["top_k"], "", "rejected"),
    Field("repeat_penalty", "sampling", 1.1, "", "rejected", (1.0,), "send `repetition_penalty`"),
    Field("n_predict", "stop", 8, "", "rejected", (-1,), "send the API's own token limit"),
    Field("min_new_tokens", "stop", 8, "", "rejected", (0,), "send `min_tokens`"),
    Field("stop_regex", "stop", "x+", "", "rejected", ([],)),
    Field("include_stop_str_in_output", "stop", True, "", "rejected", (False,)),
    Field("no_stop_trim", "stop", True, "", "rejected", (False,)),
    Field("truncate_prompt_tokens", "input", 100, "", "rejected"),
    Field("chat_template", "input", "{{ messages }}", "", "rejected", (), "set it on the server"),
)

_Bias = Annotated[float, msgspec.Meta(ge=-_MAX_BIAS, le=_MAX_BIAS)]
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Choices = Annotated[list[str], msgspec.Meta(min_length=1)]
_Schema = dict[str, Any] | str | bool


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's `structured_outputs`."""

    json: _Schema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: _Choices | None = None
    grammar: str | None = None


class EngineFields(msgspec.Struct, frozen=True):
    """The fields that have an effect."""

    guided_json: _Schema | None = None
    guided_regex: str | None = None
    guided_choice: _Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    grammar: str | None = None
    json_schema: _Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[_TokenId] | None = None
    logit_bias: dict[str, _Bias] | None = None


_NAMES = frozenset(EngineFields.__struct_fields__)


def apply_engine_fields(
    sent: dict[str, Any], sampling: Sampling, output: OutputFormat
) -> tuple[Sampling, OutputFormat]:
    """Return sampling and output format with the fields of engines in a body, if it has any."""
    if _NAMES.isdisjoint(sent):
        return sampling, output
    fields = convert({name: sent[name] for name in _NAMES if name in sent}, EngineFields)
    sampling = msgspec.structs.replace(
        sampling,
        min_tokens=fields.min_tokens or 0,
        ignore_eos=bool(fields.ignore_eos),
        stop_token_ids=tuple(fields.stop_token_ids or ()),
        logit_bias=_logit_bias(fields.logit_bias or {}),
    )
    return sampling, _output(fields, output)


def _output(fields: EngineFields, given: OutputFormat) -> OutputFormat:
    """Return the only output format of a request: two constraints cannot be combined."""
    formats = [] if given.kind == "text" else [given]
    nested = fields.structured_outputs or StructuredOutputs()
    path = "structured_outputs"
    formats += _formats("guided_json", fields.guided_json, "json")
    formats += _formats("guided_regex", fields.guided_regex, "regex")
    formats += _formats("guided_choice", fields.guided_choice, "choice")
    formats += _formats("guided_grammar", fields.guided_grammar, "grammar")
    formats += _formats(f"{path}.json", nested.json, "json")
    formats += _formats(f"{path}.json_object", nested.json_object or None, "json_object")
    formats += _formats(f"{path}.regex", nested.regex, "regex")
    formats += _formats(f"{path}.choice", nested.choice, "choice")
    formats += _formats(f"{path}.grammar", nested.grammar, "grammar")
    formats += _formats("grammar", fields.grammar or None, "grammar")  # llama.cpp's default is ""
    formats += _formats("json_schema", fields.json_schema, "json")
    formats += _formats("regex", fields.regex, "regex")
    formats += _formats("ebnf", fields.ebnf, "grammar")
    if len(formats) > 1:
        one, other = formats[1].field, formats[0].field
        raise InvalidRequest(f"{one}: cannot be combined with `{other}`", param=one)
    return formats[0] if formats else given


def _formats(field: str, value: Any, kind: str) -> list[OutputFormat]:
    if value is None:
        return []
    match kind:
        case "json":
            return [OutputFormat("json_schema", _schema(value, field), strict=True, field=field)]
        case "json_object":
            return [OutputFormat("json_object", field=field)]
        case "choice":
            return [OutputFormat("choice", choices=tuple(value), strict=True, field=field)]
        case "regex":
            return [OutputFormat("regex", text=value, strict=True, field=field)]
        case _:
            return [OutputFormat("grammar", text=value, strict=True, field=field)]


def _schema(value: dict[str, Any] | str | bool, field: str) -> dict[str, Any]:
    """Return a schema, which may be JSON text. `true` allows any value; `false` none."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"{field}: is not valid JSON: {error}", param=field) from error
    if value is True:
        return {}
    if not isinstance(value, dict):
        raise Unsupported(f"{field}: must be a schema object", param=field)
    check_schema(value, field)
    return value


def _logit_bias(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for id in given:
        if not (id.isascii() and id.isdigit() and len(id) < 10):
            where = "logit_bias"
            raise InvalidRequest(f"{where}: keys must be token ids, got {id!r}", param=where)
    return tuple((int(id), bias) for id, bias in given.items())

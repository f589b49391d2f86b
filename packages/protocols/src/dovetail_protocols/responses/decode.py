"""Decode a request body. Lenient: undeclared fields are reported, not rejected."""

from collections.abc import Iterator, Sequence

import msgspec

from dovetail_model import (
    Block,
    ContextManagement,
    Identity,
    InvalidRequest,
    OutputFormat,
    Request,
    Sampling,
    Thinking,
)
from dovetail_protocols.body_prefixes import HistoryKey
from dovetail_protocols.codec import Headers
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.engine_fields import apply_engine_fields
from dovetail_protocols.hints import NvextOptions, read_nvext
from dovetail_protocols.identity import read_identity, read_session
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.request_body import RequestBody, convert
from dovetail_protocols.responses import content, tools, wire
from dovetail_protocols.responses import input_items as items
from dovetail_protocols.responses.echo import SEARCH_SOURCES, build_echo
from dovetail_protocols.responses.fields import RESPONSES_FIELDS
from dovetail_protocols.responses.input_items import DecodedItem
from dovetail_protocols.responses.raw_body import named_conversation
from dovetail_protocols.responses.tools import DeclaredTools, ResponsesTools

_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = frozenset((_LOGPROBS, "reasoning.encrypted_content", SEARCH_SOURCES))


def decode(body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
    """Decode a request from its body and headers."""
    history_key = HistoryKey("input", "responses.item", read_session(headers))
    sent = RequestBody(body, cache, raw_fields=("tools",), history=history_key)
    try:
        return _request(sent, convert(sent.fields, wire.Body), headers)
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error


def _request(sent: RequestBody, body: wire.Body, headers: Headers) -> Request:
    _reject_unsupported(body)
    unused = RESPONSES_FIELDS.inspect(sent.fields)
    pieces = items.decode_items(sent, body.input)
    notable = [piece for piece in pieces if piece.tools or piece.ignored]
    given = body.tools or ()
    declared = sent.get_or_decode(
        "responses.tools", given, lambda: tools.read_declared_tools(sent.values(given, "tools"))
    )
    offer = _collect_tools(sent, declared, [piece for piece in notable if piece.tools])
    choice, offered, ignored_choice = tools.apply_tool_choice(
        body.tool_choice, body.parallel_tool_calls, offer.specs
    )
    compacts = bool(pieces) and pieces[-1].compacts  # earlier triggers were handled already
    if compacts:
        choice = msgspec.structs.replace(choice, mode="none", name=None)
    nvext = read_nvext(body.nvext, headers)
    system, ignored_instructions = _system(sent, body.instructions)
    ignored = [
        *unused.reported,
        *_unknown_includes(body.include or ()),
        *offer.ignored,
        *ignored_choice,
        *ignored_instructions,
    ]
    ignored += [path for piece in notable for path in piece.ignored]
    sampling, output = apply_engine_fields(sent.fields, _sampling(body), _output(body.text))
    return Request(
        model=body.model,
        turns=items.build_turns(sent, pieces),
        system=system,
        tools=offered,
        tool_choice=choice,
        sampling=sampling,
        thinking=_thinking(body, nvext),
        output=output,
        identity=_identity(body, headers, compacts),
        hints=nvext.hints,
        context=ContextManagement(truncate=_truncates(body.truncation)),
        stream=body.stream is True,
        ignored=tuple(ignored),
        client=sent.client_fields("responses", unused, declared.tools),
        echo=build_echo(
            body,
            sent.fields,
            tools=declared.json,
            compacts=compacts,
            tool_search=any(tools.is_client_tool_search(tool) for _, tool in declared.tools),
        ),
        server_tools=tools.require_server_tool(body.tool_choice, offer),
        max_server_calls=body.max_tool_calls,
    )


def _collect_tools(
    sent: RequestBody, declared: DeclaredTools, more: list[DecodedItem]
) -> ResponsesTools:
    """Collect the tools of the body and of input items."""
    parts: tuple[DeclaredTools | DecodedItem, ...] = (declared, *more)
    return sent.combine(
        "responses.offer",
        parts,
        lambda parts: tools.collect_tools(t for part in parts for t in part.tools),
    )


def _reject_unsupported(body: wire.Body) -> None:
    """Reject fields that would silently change the meaning of the request if ignored."""
    if not body.model:
        raise InvalidRequest("model: Field required", param="model")
    if body.background and body.store is False:
        raise InvalidRequest(
            "background: requires a stored response, but `store` is false", param="background"
        )
    if body.conversation is not None and named_conversation(body.conversation) is None:
        raise InvalidRequest(
            "conversation: must be an id or an object with an `id`", param="conversation"
        )
    if body.input is None and body.previous_response_id is None and body.conversation is None:
        raise InvalidRequest("input: Field required", param="input")


def _system(
    sent: RequestBody, instructions: str | list[object] | None
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Decode instructions to blocks, and return the paths of unsupported parts."""
    if isinstance(instructions, str):
        given: str | list[msgspec.Raw] = instructions
    else:
        given = [msgspec.Raw(msgspec.json.encode(instructions))]
    return sent.get_or_decode("responses.instructions", given, lambda: _instructions(instructions))


def _instructions(
    instructions: str | list[object] | None,
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Decode text, or items: every message counts, regardless of its role."""
    ignored: list[str] = []
    if instructions is None or isinstance(instructions, str):
        return content.decode_content(instructions, "instructions", ignored), ()
    found: list[Block] = []
    for at, item in enumerate(instructions):
        path = f"instructions[{at}]"
        message = convert(item, wire.MessageIn, path)
        found += content.decode_content(message.content, f"{path}.content", ignored)
    return tuple(found), tuple(ignored)


def _sampling(body: wire.Body) -> Sampling:
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    wants_logprobs = _LOGPROBS in (body.include or ())
    return Sampling(
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        stop=tuple(stop or ()),
        logprobs=body.top_logprobs or 0 if wants_logprobs or body.top_logprobs else None,
    )


def _unknown_includes(given: Sequence[str]) -> Iterator[str]:
    return (f"include[{at}]" for at, name in enumerate(given) if name not in _INCLUDES)


def _thinking(body: wire.Body, nvext: NvextOptions) -> Thinking:
    """Decode thinking controls. An empty `reasoning` has no effect; template arguments win."""
    reasoning = body.reasoning or wire.Reasoning()
    kwargs = body.chat_template_kwargs or {}
    given = kwargs.get("reasoning_effort")
    effort = given if isinstance(given, str) else reasoning.effort
    summary = reasoning.summary or reasoning.generate_summary
    return Thinking(
        enabled=_enabled(kwargs, effort),
        effort=effort,
        budget=nvext.max_thinking_tokens,
        keep="all" if reasoning.context == "all_turns" else "template",
        summary=None if summary == "none" else summary,
        template_kwargs=kwargs,
        retention=nvext.reasoning_retention,
    )


def _truncates(truncation: str | None) -> bool:
    if truncation not in (None, "auto", "disabled"):
        message = f"truncation: must be auto or disabled, got {truncation!r}"
        raise InvalidRequest(message, param="truncation")
    return truncation == "auto"


def _enabled(kwargs: wire.Json, effort: str | None) -> bool | None:
    """Return a switch of the template; without one, an effort other than `none` means on."""
    for name in ("enable_thinking", "thinking"):
        if isinstance(kwargs.get(name), bool):
            return bool(kwargs[name])
    mode = kwargs.get("thinking_mode")
    if mode in ("enabled", "disabled"):
        return bool(mode == "enabled")
    return None if effort is None else effort != "none"


def _output(text: wire.TextOptions | None) -> OutputFormat:
    format = text.format if text else None
    match format:
        case None | wire.TextFormat(type="text"):
            return OutputFormat()
        case wire.TextFormat(type="json_object"):
            return OutputFormat("json_object")
        case wire.TextFormat(type="json_schema", schema=schema, name=name, strict=strict):
            if schema is None:
                where = "text.format.schema"
                raise InvalidRequest(f"{where}: Field required", param=where)
            if strict:
                check_schema(schema, "text.format.schema")
            return OutputFormat("json_schema", schema, name, strict is True)
    where = "text.format.type"
    raise InvalidRequest(f"{where}: must be text, json_object or json_schema", param=where)


def _identity(body: wire.Body, headers: Headers, compacts: bool) -> Identity:
    """Read the client's identity. The body's metadata may repeat headers; real headers win."""
    metadata = {
        name.lower(): value
        for name, value in (body.client_metadata or {}).items()
        if isinstance(value, str)
    }
    found = read_identity(
        {**metadata, **headers},
        session=body.prompt_cache_key,
        user=body.safety_identifier or body.user,
    )
    return msgspec.structs.replace(found, compaction=True) if compacts else found

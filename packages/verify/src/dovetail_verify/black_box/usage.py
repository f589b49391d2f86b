"""Checks of token counts and of prefix caching in every API."""

from dovetail_verify.api_checks import ApiCheckSpec, build_api_checks
from dovetail_verify.black_box.samples import QUESTION, sample_response, sample_stream
from dovetail_verify.check import CheckFailed, NotApplicable, require
from dovetail_verify.dialects import CHAT, RESPONSES, Dialect, Json
from dovetail_verify.target import TargetServer

_FILLER_SENTENCE = (
    "Rule {n}: write short sentences, keep names as they are, and state what you changed. "
)
_FILLER_TOKENS = 18  # approximate length of the sentence


def make_long_text(target: TargetServer, tokens: int) -> str:
    """Return a unique text of about `tokens` tokens, at most a third of the context window."""
    room = target.context_length // 3 if target.context_length else tokens
    count = max(1, min(tokens, room) // _FILLER_TOKENS)
    sentences = "".join(_FILLER_SENTENCE.format(n=n) for n in range(count))
    return f"Guide {target.new_nonce()}. {sentences}"


async def _prompt_count_consistent(target: TargetServer, dialect: Dialect) -> str:
    one = dialect.usage(await sample_response(target, dialect)).prompt_tokens
    other = dialect.usage(await sample_stream(target, dialect)).prompt_tokens
    require(one == other, f"the same prompt has {one} tokens non-streaming and {other} streaming")
    require(one > 0, "usage reports 0 prompt tokens")
    return f"{one} tokens"


async def _output_counted(target: TargetServer, dialect: Dialect) -> str:
    for sample in (sample_response, sample_stream):
        exchange = await sample(target, dialect)
        output = dialect.usage(exchange).output_tokens
        text = dialect.text(exchange)
        require(output > 0 or not text, f"no output tokens for {text!r}")
    return f"{output} tokens"


async def _content_parts(target: TargetServer, dialect: Dialect) -> str:
    """Compare the same text as a string and as a list of parts with cache_control."""
    plain = dialect.body(target.model, [QUESTION, "Red", "More."], max_tokens=16)
    one = dialect.usage((await target.post(dialect.path, plain)).require_ok()).prompt_tokens
    listed = (await target.post(dialect.path, _as_parts(dialect, plain))).require_ok()
    other = dialect.usage(listed).prompt_tokens
    require(one == other, f"{one} tokens as a string, {other} as a list of parts")
    return f"{one} tokens both ways"


def _as_parts(dialect: Dialect, body: Json) -> Json:
    name = "input" if dialect is RESPONSES else "messages"
    changed = []
    for turn in body[name]:
        part: Json = {"type": "text", "text": turn["content"]}
        if dialect is RESPONSES:
            part["type"] = "input_text" if turn["role"] == "user" else "output_text"
        elif dialect is not CHAT and turn["role"] == "user":
            part["cache_control"] = {"type": "ephemeral"}
        changed.append({**turn, "content": [part]})
    return {**body, name: changed}


async def _prefix_cached(target: TargetServer, dialect: Dialect) -> str:
    system = make_long_text(target, 500)
    first = dialect.body(target.model, [QUESTION], system=system, max_tokens=16)
    one = (await target.post(dialect.path, first)).require_ok()
    turns = [QUESTION, dialect.text(one).strip() or "Red, green, blue.", "And three more?"]
    second = dialect.body(target.model, turns, system=system, max_tokens=16)
    two = dialect.usage((await target.post(dialect.path, second)).require_ok())
    before = dialect.usage(one)
    if two.cached_tokens is None:
        raise CheckFailed("usage does not report cached prompt tokens")
    enough = before.prompt_tokens // 2
    found = (
        f"{two.cached_tokens} of {two.prompt_tokens} prompt tokens were cached on the second turn"
    )
    require(two.cached_tokens >= enough, f"{found}; the first turn had {before.prompt_tokens}")
    require(two.cached_tokens <= two.prompt_tokens, f"{found}, which is more than the prompt")
    return found


async def _metadata_excluded(target: TargetServer, dialect: Dialect) -> str:
    """Compare prompt tokens with and without metadata, which must not change the prompt."""
    body = dialect.body(target.model, [QUESTION], max_tokens=16)
    counts = []
    for number in range(2):
        word = target.new_nonce()
        varied = {**body, **_metadata_fields(dialect, word * (1 + 3 * number))}
        counts.append(
            dialect.usage((await target.post(dialect.path, varied)).require_ok()).prompt_tokens
        )
    plain = dialect.usage((await target.post(dialect.path, body)).require_ok()).prompt_tokens
    if len({*counts, plain}) > 1:
        raise CheckFailed(
            f"{plain} prompt tokens without metadata, {counts} with metadata of two lengths"
        )
    return f"{plain} tokens with and without metadata"


def _metadata_fields(dialect: Dialect, word: str) -> Json:
    if dialect is RESPONSES:
        item = {"type": "message", "role": "user", "content": QUESTION, "id": f"msg_{word}"}
        return {"input": [item], "prompt_cache_key": word, "client_metadata": {"thread": word}}
    if dialect is CHAT:
        return {"user": word, "prompt_cache_key": word}
    return {"metadata": {"user_id": word}}


async def count_chat_tokens(target: TargetServer, body: Json) -> int:
    """Return the tokens of a chat by /tokenize. The check does not apply if it is not served."""
    for path in ("/tokenize", "/v1/tokenize"):
        exchange = await target.post(path, body)
        if exchange.status in (404, 405, 501):
            continue
        count = exchange.require_ok().json.get("count")
        if isinstance(count, int):
            return count
        raise NotApplicable("/tokenize does not count conversations")
    raise NotApplicable("API not served: /tokenize")


CHECKS = build_api_checks(
    (
        ApiCheckSpec(
            "usage.same",
            "TK-1",
            "a prompt has the same number of tokens streaming and non-streaming",
            "Context displays jump, and compaction starts too early or too late.",
            _prompt_count_consistent,
        ),
        ApiCheckSpec(
            "usage.output",
            "TK-10",
            "output tokens are counted",
            "The costs and speeds that clients show are wrong.",
            _output_counted,
        ),
        ApiCheckSpec(
            "usage.parts",
            "TK-4",
            "a string and a list of parts produce the same prompt",
            "Claude Code sends a turn first as a list, later as a string, so the prefix changes.",
            _content_parts,
        ),
        ApiCheckSpec(
            "usage.metadata",
            "TK-7",
            "ids and metadata are not part of the prompt",
            "Every session has a different prefix, so the complete prompt is re-prefilled.",
            _metadata_excluded,
        ),
        ApiCheckSpec(
            "cache.repeated",
            "TK-5",
            "the second turn is a prefix cache hit on the first, and usage reports it",
            "Every turn re-prefills the complete history, so long sessions become slow.",
            _prefix_cached,
        ),
    )
)

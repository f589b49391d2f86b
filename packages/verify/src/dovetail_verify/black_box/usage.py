"""Tokens in every API: counted exactly, and found again in the cache."""

from dovetail_verify.api_checks import Row, checks_of
from dovetail_verify.black_box.samples import QUESTION, stream, whole
from dovetail_verify.check import Failed, NotApplicable, require
from dovetail_verify.dialects import CHAT, RESPONSES, Dialect, Json
from dovetail_verify.target import Stage

_SENTENCE = "Rule {n}: write short sentences, keep names as they are, and say what you changed. "
_TOKENS = 18  # of that sentence, about


def long_text(stage: Stage, tokens: int) -> str:
    """A text of about so many tokens that no request had before; a part of what fits the window."""
    room = stage.window // 3 if stage.window else tokens
    count = max(1, min(tokens, room) // _TOKENS)
    sentences = "".join(_SENTENCE.format(n=n) for n in range(count))
    return f"Guide {stage.unique()}. {sentences}"


async def _same_count(stage: Stage, dialect: Dialect) -> str:
    one = dialect.used(await whole(stage, dialect)).prompt
    other = dialect.used(await stream(stage, dialect)).prompt
    require(one == other, f"the same prompt has {one} tokens whole and {other} streamed")
    require(one > 0, "usage says that the prompt has no tokens")
    return f"{one} tokens"


async def _output_count(stage: Stage, dialect: Dialect) -> str:
    for ask in (whole, stream):
        exchange = await ask(stage, dialect)
        output = dialect.used(exchange).output
        text = dialect.text(exchange)
        require(output > 0 or not text, f"no output tokens for {text!r}")
    return f"{output} tokens"


async def _parts(stage: Stage, dialect: Dialect) -> str:
    """The same words as a string, and as a list of parts with what only caches read."""
    plain = dialect.body(stage.model, [QUESTION, "Red", "More."], limit=16)
    one = dialect.used((await stage.post(dialect.path, plain)).ok()).prompt
    listed = (await stage.post(dialect.path, _as_parts(dialect, plain))).ok()
    other = dialect.used(listed).prompt
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


async def _cached(stage: Stage, dialect: Dialect) -> str:
    system = long_text(stage, 500)
    first = dialect.body(stage.model, [QUESTION], system=system, limit=16)
    one = (await stage.post(dialect.path, first)).ok()
    turns = [QUESTION, dialect.text(one).strip() or "Red, green, blue.", "And three more?"]
    second = dialect.body(stage.model, turns, system=system, limit=16)
    two = dialect.used((await stage.post(dialect.path, second)).ok())
    before = dialect.used(one)
    if two.cached is None:
        raise Failed("usage does not say how many prompt tokens were cached")
    enough = before.prompt // 2
    found = f"{two.cached} of {two.prompt} prompt tokens were cached on the second turn"
    require(two.cached >= enough, f"{found}; the first turn had {before.prompt}")
    require(two.cached <= two.prompt, f"{found}, which is more than all")
    return found


async def _ids_stay_out(stage: Stage, dialect: Dialect) -> str:
    """What names a request, and not what is said in it, must not change the prompt."""
    body = dialect.body(stage.model, [QUESTION], limit=16)
    counts = []
    for number in range(2):
        word = stage.unique()
        varied = {**body, **_names(dialect, word * (1 + 3 * number))}
        counts.append(dialect.used((await stage.post(dialect.path, varied)).ok()).prompt)
    plain = dialect.used((await stage.post(dialect.path, body)).ok()).prompt
    if len({*counts, plain}) > 1:
        raise Failed(f"{plain} prompt tokens without, {counts} with metadata of two lengths")
    return f"{plain} tokens, whatever the metadata"


def _names(dialect: Dialect, word: str) -> Json:
    if dialect is RESPONSES:
        item = {"type": "message", "role": "user", "content": QUESTION, "id": f"msg_{word}"}
        return {"input": [item], "prompt_cache_key": word, "client_metadata": {"thread": word}}
    if dialect is CHAT:
        return {"user": word, "prompt_cache_key": word}
    return {"metadata": {"user_id": word}}


async def tokenized(stage: Stage, body: Json) -> int:
    """The number of tokens of a chat by /tokenize; not applicable where there is none."""
    for path in ("/tokenize", "/v1/tokenize"):
        exchange = await stage.post(path, body)
        if exchange.status in (404, 405, 501):
            continue
        count = exchange.ok().json.get("count")
        if isinstance(count, int):
            return count
        raise NotApplicable("/tokenize does not count conversations")
    raise NotApplicable("API not served: /tokenize")


CHECKS = checks_of(
    (
        Row(
            "usage.same",
            "TK-1",
            "a prompt has as many tokens streamed as whole",
            "Context meters jump, and compaction comes too early or too late.",
            _same_count,
        ),
        Row(
            "usage.output",
            "TK-10",
            "output tokens are counted",
            "Costs and speeds that clients show are wrong.",
            _output_count,
        ),
        Row(
            "usage.parts",
            "TK-4",
            "a string and a list of parts are the same prompt",
            "Claude Code sends a turn as a list first and as a string later: the cache is lost.",
            _parts,
        ),
        Row(
            "usage.metadata",
            "TK-7",
            "ids and metadata are not part of the prompt",
            "Every session gets another prefix: the whole prompt is computed again.",
            _ids_stay_out,
        ),
        Row(
            "cache.repeated",
            "TK-5",
            "the second turn finds the first in the cache, and says so",
            "Each turn computes the whole history again: long sessions crawl.",
            _cached,
        ),
    )
)

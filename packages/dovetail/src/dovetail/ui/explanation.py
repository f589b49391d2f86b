"""Explain in words why a prompt was prefilled again, what it cost, and what to do about it."""

import msgspec

from dovetail.prompt.prefix_report import DivergenceReason
from dovetail.telemetry.record import PrefixStats, RequestRecord


class PromptPart(msgspec.Struct, frozen=True):
    """A part of a prompt.

    `kind`: `previous` (equal to the previous turn and cached by the engine), `unreported` (the
    same, if the engine does not report its cache), `cached` (cached by the engine, but not from
    the previous turn), `evicted` (equal to the previous turn, but prefilled again), `changed`
    (prefilled again because the prefix diverged) or `new`.
    """

    kind: str
    tokens: int


class PrefixExplanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why tokens were prefilled again.

    `tokens`: the tokens that were prefilled again.
    `seconds`: their estimated share of the prefill time.
    """

    code: str
    title: str
    text: str
    remedy: str
    tokens: int = 0
    seconds: float | None = None


#: Reason of a divergence -> what happened, and what to do.
REASONS: dict[DivergenceReason, tuple[str, str, str]] = {
    "first": (
        "First prompt of the session",
        "There is no earlier prompt of this session, or this is a side request such as a title.",
        (
            "Compare the tokens that are shared with other sessions: a small number means that the "
            "system text differs early."
        ),
    ),
    "header": (
        "The system text changed",
        (
            "The system text is at the start of the prompt, so everything after the change is "
            "prefilled again."
        ),
        (
            "Find the text that changed. If the model does not need it, remove it with "
            "--volatile-pattern."
        ),
    ),
    "tools": (
        "The tool list changed",
        "A tool was added, removed or changed, and the tool list is near the start of the prompt.",
        "Load deferred and MCP tools at the start of the session.",
    ),
    "switches": (
        "The template switches changed",
        "Variables of the chat template changed, for example thinking was turned on or off.",
        "Use the same reasoning settings for the complete session.",
    ),
    "history": (
        "The history was edited",
        "The client edited or removed an earlier turn, or compacted the history.",
        (
            "Expected after a compaction, a rewind or a fork. Otherwise check what the client "
            "changes in earlier messages."
        ),
    ),
    "policy": (
        "Reasoning of earlier turns was dropped",
        (
            "The chat template, or the setting --reasoning-retention, dropped the reasoning of "
            "earlier turns."
        ),
        "Nothing, if the model was trained so. --reasoning-retention all keeps the reasoning.",
    ),
    "resume": (
        "Reasoning was cleared on resume",
        (
            "The session was idle for longer than --resume-drop-thinking, so its reasoning was "
            "removed once."
        ),
        "Nothing: the setting trades one prefill for a shorter prompt.",
    ),
    "edit": (
        "The context was edited",
        "A context edit or a truncation removed a part of the history.",
        "Nothing. If it happens often, clear more content at once.",
    ),
    "retokenization": (
        "The same text was tokenized differently",
        (
            "An earlier turn was not recognized in the ledger, so its text was tokenized again and "
            "gave other tokens."
        ),
        (
            "The client rewrites the turns that it returns, or the ledger no longer has the turn. "
            "Check the notes of this request, and the size and age limits of the ledger."
        ),
    ),
}
_EVICTED = (
    "The engine no longer had the prefix",
    "The prompt extends the previous turn exactly, but the engine prefilled a part of it again.",
    "Give the engine more KV cache memory, or check whether the session moved to another replica.",
)


def count_changed_tokens(record: RequestRecord) -> int:
    """Return how many tokens of the prompt were prefilled again because the prefix diverged.

    These are the tokens that the previous prompt had after the divergence, at most as many as this
    prompt has there.
    """
    if record.usage is None or record.prefix is None:
        return 0
    known = max(record.prefix.common, record.usage.cached_tokens)
    return max(0, min(record.prefix.lost, record.usage.input_tokens - known))


def divide_prompt(record: RequestRecord) -> list[PromptPart]:
    """Divide a prompt into its parts, in their order in the prompt."""
    if record.usage is None:
        return []
    total = record.usage.input_tokens
    prefix = record.prefix or PrefixStats(0, total)
    common, cached = min(prefix.common, total), min(record.usage.cached_tokens, total)
    changed = count_changed_tokens(record)
    if record.reprefilled is None and not cached:  # the engine does not report its cache
        parts = [("unreported", common), ("changed", changed), ("new", total - common - changed)]
    else:
        parts = [
            ("previous", min(common, cached)),
            ("cached", max(0, cached - common)),
            ("evicted", max(0, common - cached)),
            ("changed", changed),
            ("new", total - max(common, cached) - changed),
        ]
    return [PromptPart(kind, tokens) for kind, tokens in parts if tokens > 0]


def explain_prefix(record: RequestRecord) -> list[PrefixExplanation]:
    """Explain each cause for which tokens of a prompt were prefilled again."""
    parts = {part.kind: part.tokens for part in divide_prompt(record)}
    prefix, found = record.prefix, []
    if prefix is not None and prefix.reason is not None:
        title, text, remedy = _reason_texts(prefix.reason)
        text = " ".join((text, *_describe_place(prefix)))
        tokens = 0 if prefix.reason == "first" else parts.get("changed", 0)
        found.append(_explanation(prefix.reason, (title, text, remedy), tokens, record))
    if evicted := parts.get("evicted", 0):
        found.append(_explanation("evicted", _EVICTED, evicted, record))
    return found


def _reason_texts(reason: str) -> tuple[str, str, str]:
    """Return the texts of a reason. A trace of a later version may have an unknown one."""
    texts = {str(known): words for known, words in REASONS.items()}
    return texts.get(reason, (reason, "This version does not know the reason.", ""))


def _describe_place(prefix: PrefixStats) -> list[str]:
    sentences = []
    if prefix.reason == "first":
        if prefix.shared:
            sentences.append(f"It shares its first {prefix.shared:,} tokens with another session.")
        return sentences
    if prefix.diverged_at is not None:
        sentences.append(
            f"The prompt diverged at token {prefix.diverged_at:,} of {prefix.total:,}."
        )
    if prefix.turn is not None:
        sentences.append(f"The first changed turn is turn {prefix.turn}, counted from 0.")
    return sentences


def _explanation(
    code: str, texts: tuple[str, str, str], tokens: int, record: RequestRecord
) -> PrefixExplanation:
    title, text, remedy = texts
    seconds = _estimate_seconds(record, tokens) if tokens else None
    return PrefixExplanation(
        code=code, title=title, text=text, remedy=remedy, tokens=tokens, seconds=seconds
    )


def _estimate_seconds(record: RequestRecord, tokens: int) -> float | None:
    """Estimate the prefill time of some tokens: their share of all prefilled tokens."""
    usage = record.usage
    if usage is None or record.prepared is None or record.first_token is None:
        return None
    prefilled = usage.input_tokens - usage.cached_tokens
    return (record.first_token - record.prepared) * min(1.0, tokens / max(1, prefilled))

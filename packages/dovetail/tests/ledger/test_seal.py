"""Seals: only the owner can open them, and every modification is detected."""

import base64
import random
import string
import subprocess
import sys
from array import array
from typing import Literal, get_args

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_entries import HASH, IDS, SPANS, TEXT

from dovetail.ledger import seal as seal_module
from dovetail.ledger.entry import EntrySpan, pack_ids, unpack_ids
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import (
    MAX_SEAL_CHARS,
    PreviousTurnTail,
    Sealer,
    SealPayload,
    SealRefusal,
    SealRefusalReason,
    read_entry_id,
)

KEY = bytes(range(32))
SEALER = Sealer(Keyring([KEY]))
IDENTIFIERS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=40)
ALPHABET = string.ascii_letters + string.digits + "-_"

TAILS = st.builds(
    PreviousTurnTail,
    entry=IDENTIFIERS,
    start=st.integers(0, 10**6),
    generated=IDS,
    spans=st.lists(SPANS, max_size=3).map(tuple),
    stop=st.none() | st.integers(0, 2**31),
)
SEALED = st.builds(
    SealPayload,
    entry=IDENTIFIERS,
    parent=st.none() | IDENTIFIERS,
    generated=IDS,
    spans=st.lists(SPANS, max_size=5).map(tuple),
    chain_before=HASH,
    head=HASH,
    reasoning_index=st.integers(0, 1000),
    previous=st.none() | TAILS,
)


def _reasoning_payload(tokens: int = 50, *, entry: str = "turn_1", seed: int = 0) -> SealPayload:
    """Build a payload with this many tokens of realistic reasoning."""
    chance = random.Random(seed)
    words = ["the", "file", "has", "no", "test", "yet", "so", "I", "will", "read", "it", "first"]
    text = " ".join(chance.choice(words) + str(chance.randrange(1000)) for _ in range(tokens))
    ids = pack_ids(chance.randrange(150_000) for _ in range(tokens))
    span = EntrySpan("reasoning", text, text.strip(), tokens)
    return SealPayload(entry, "turn_0", ids, (span,), b"b" * 16, b"h" * 16)


SAMPLE = _reasoning_payload()
TEXT_OF_SAMPLE = SEALER.seal(SAMPLE, "tenant", "model")


@given(sealed=SEALED, tenant=TEXT, model=TEXT)
def test_a_sealed_payload_can_be_opened(sealed: SealPayload, tenant: str, model: str) -> None:
    text = SEALER.seal(sealed, tenant, model)
    assert SEALER.open(text, tenant, model) == sealed
    assert read_entry_id(text) == sealed.entry
    assert len(text) <= MAX_SEAL_CHARS
    assert set(text) <= set(ALPHABET)


def test_seal_text_reveals_no_reasoning() -> None:
    assert SEALER.seal(SAMPLE, "tenant", "model") != TEXT_OF_SAMPLE
    clear = base64.urlsafe_b64decode(TEXT_OF_SAMPLE + "=" * (-len(TEXT_OF_SAMPLE) % 4))
    assert b"turn_1" in clear
    assert b"turn_0" not in clear
    assert b"tenant" not in clear
    assert b"file" not in clear


def test_any_changed_character_is_detected() -> None:
    """Change every bit of every character, including unused bits of the last character."""
    for at, old in enumerate(TEXT_OF_SAMPLE):
        for bit in range(6):
            new = ALPHABET[ALPHABET.index(old) ^ (1 << bit)]
            changed = TEXT_OF_SAMPLE[:at] + new + TEXT_OF_SAMPLE[at + 1 :]
            assert isinstance(SEALER.open(changed, "tenant", "model"), SealRefusal), (at, bit)


def test_changes_of_nonce_body_and_tag_are_reported_as_forged() -> None:
    for at in range(48, len(TEXT_OF_SAMPLE), 7):
        new = "A" if TEXT_OF_SAMPLE[at] != "A" else "B"
        changed = TEXT_OF_SAMPLE[:at] + new + TEXT_OF_SAMPLE[at + 1 :]
        assert SEALER.open(changed, "tenant", "model") == SealRefusal("forged")


def test_any_truncation_is_detected() -> None:
    for length in range(len(TEXT_OF_SAMPLE)):
        reason: SealRefusalReason = "truncated" if length >= len("dovetail") else "not_ours"
        truncated = TEXT_OF_SAMPLE[:length]
        assert SEALER.open(truncated, "tenant", "model") == SealRefusal(reason), length
        assert read_entry_id(truncated) is None


@pytest.mark.parametrize("more", ["A", "AAAA", "=", "==", "\n", " ", "é", TEXT_OF_SAMPLE])
def test_appended_text_is_detected(more: str) -> None:
    for changed in (TEXT_OF_SAMPLE + more, TEXT_OF_SAMPLE[:30] + more + TEXT_OF_SAMPLE[30:]):
        assert SEALER.open(changed, "tenant", "model") == SealRefusal("forged")


def test_non_canonical_base64_is_refused() -> None:
    text = next(
        text
        for seed in range(100)
        if "-" in (text := SEALER.seal(_reasoning_payload(seed=seed), "tenant", "model"))[40:]
    )
    changed = text[:40] + text[40:].replace("-", "+")
    assert SEALER.open(changed, "tenant", "model") == SealRefusal("forged")


def test_a_seal_cannot_be_given_another_entry_id() -> None:
    one, two = (
        SEALER.seal(_reasoning_payload(entry=id), "tenant", "model") for id in ("aaa", "bbb")
    )
    head = 24 + 4  # the fixed part and three bytes of the id
    swapped = one[:24] + two[24:head] + one[head:]
    assert read_entry_id(swapped) == "bbb"
    assert SEALER.open(swapped, "tenant", "model") == SealRefusal("forged")


@pytest.mark.parametrize(
    ("tenant", "model"), [("other", "model"), ("tenant", "other"), ("", "tenantmodel"), ("", "")]
)
def test_a_seal_opens_only_for_its_tenant_and_model(tenant: str, model: str) -> None:
    assert SEALER.open(TEXT_OF_SAMPLE, tenant, model) == SealRefusal("foreign")


def test_tenant_and_model_are_separated() -> None:
    text = SEALER.seal(SAMPLE, "ab", "c")
    assert SEALER.open(text, "a", "bc") == SealRefusal("foreign")


def test_a_matching_binding_does_not_open_a_foreign_seal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the short tag of another tenant collides, the seal does not open."""
    monkeypatch.setattr(seal_module, "_compute_binding", lambda key, tenant, model: b"same")
    text = SEALER.seal(SAMPLE, "tenant", "model")
    assert SEALER.open(text, "tenant", "model") == SAMPLE
    assert SEALER.open(text, "other", "model") == SealRefusal("forged")
    assert SEALER.open(text, "tenant", "other") == SealRefusal("forged")


def test_seals_open_after_key_rotation() -> None:
    new = bytes(32)
    rotated, later = Sealer(Keyring([new, KEY])), Sealer(Keyring([new]))
    assert rotated.open(TEXT_OF_SAMPLE, "tenant", "model") == SAMPLE
    assert later.open(TEXT_OF_SAMPLE, "tenant", "model") == SealRefusal("unknown_key")
    sealed_anew = rotated.seal(SAMPLE, "tenant", "model")
    assert later.open(sealed_anew, "tenant", "model") == SAMPLE
    assert SEALER.open(sealed_anew, "tenant", "model") == SealRefusal("unknown_key")


_REPLICA = """
import sys
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.seal import SealPayload, Sealer
opened = Sealer(Keyring([bytes(range(32))])).open(sys.stdin.read(), "tenant", "model")
assert isinstance(opened, SealPayload), opened
print(Sealer(Keyring([bytes(range(32))])).seal(opened, "tenant", "model"), end="")
"""


def test_replicas_open_each_others_seals() -> None:
    environment = {"PYTHONPATH": ":".join(part for part in sys.path if part)}
    made = subprocess.run(
        [sys.executable, "-c", _REPLICA],
        env=environment,
        input=TEXT_OF_SAMPLE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert made.stdout != TEXT_OF_SAMPLE
    assert SEALER.open(made.stdout, "tenant", "model") == SAMPLE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "erased",
        "dovetai",
        "EqQBCkYIBxgCKkBn" * 20,  # looks like a signature of another vendor
        "gAAAAABo" + "x" * 300,
        base64.b64encode(bytes(range(256))).decode(),
        "ddovetail" + TEXT_OF_SAMPLE,
        "\ud800" * 50,
    ],
)
def test_other_vendors_signatures_are_not_ours(text: str) -> None:
    assert SEALER.open(text, "tenant", "model") == SealRefusal("not_ours")
    assert read_entry_id(text) is None


def test_later_version_is_recognized() -> None:
    data = bytearray(base64.urlsafe_b64decode(TEXT_OF_SAMPLE + "=" * (-len(TEXT_OF_SAMPLE) % 4)))
    data[6] = 2
    later = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    assert SEALER.open(later, "tenant", "model") == SealRefusal("version")
    assert read_entry_id(later) is None


SOUP = st.one_of(
    st.text(),
    st.text(ALPHABET + "+/=. é\0\ud800").map(lambda rest: "dovetail" + rest),
    st.binary(max_size=400).map(lambda data: "dovetail" + base64.urlsafe_b64encode(data).decode()),
    # A valid beginning, so that later checks are reached.
    st.tuples(st.integers(0, 80), st.text(ALPHABET + "=\x7f", max_size=500)).map(
        lambda parts: TEXT_OF_SAMPLE[: parts[0]] + parts[1]
    ),
    st.tuples(st.integers(24, len(TEXT_OF_SAMPLE)), st.characters()).map(
        lambda parts: TEXT_OF_SAMPLE[: parts[0]] + parts[1] + TEXT_OF_SAMPLE[parts[0] + 1 :]
    ),
)


@settings(max_examples=1000)
@given(text=SOUP, tenant=st.just("tenant") | st.text(), model=st.just("model") | st.text())
def test_open_never_raises(text: str, tenant: str, model: str) -> None:
    opened = SEALER.open(text, tenant, model)
    if text == TEXT_OF_SAMPLE and (tenant, model) == ("tenant", "model"):
        assert opened == SAMPLE
    else:
        assert isinstance(opened, SealRefusal)
        assert opened.reason in get_args(SealRefusalReason)
    assert read_entry_id(text) is None or text.startswith("dovetail")


@pytest.mark.parametrize("payload", [b"", b"\0", msgspec.msgpack.encode([1, 2]), b"bomb"])
def test_unreadable_payloads_are_refused(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload of a later release, or a decompression bomb by an owner of the key."""
    body = zstandard.ZstdCompressor().compress(bytes(1 << 27) if payload == b"bomb" else payload)
    monkeypatch.setattr(seal_module, "_encode_fitting", lambda sealed, room: body)
    text = SEALER.seal(SAMPLE, "tenant", "model")
    expected: SealRefusalReason = "forged" if payload == b"bomb" else "version"
    assert SEALER.open(text, "tenant", "model") == SealRefusal(expected)


def _long_turn(spans: int, tokens: int) -> SealPayload:
    """Build a turn with many reasoning spans and calls, and the tail of a previous turn."""
    made: list[EntrySpan] = []
    ids = array("I")
    for number in range(spans):
        part = _reasoning_payload(tokens, seed=number)
        ids.extend(unpack_ids(part.generated))
        kind: Literal["reasoning", "call"] = "call" if number % 2 else "reasoning"
        raw = f"<call>{part.spans[0].raw}</call>"
        made.append(EntrySpan(kind, raw, part.spans[0].shown, len(ids), id=f"c{number}"))
    tail = PreviousTurnTail(
        "turn_0",
        10,
        _reasoning_payload(tokens, seed=99).generated,
        _reasoning_payload(tokens).spans,
    )
    return SealPayload("turn_1", "turn_0", ids.tobytes(), tuple(made), b"b", b"h", 3, tail)


def _opened(sealed: SealPayload) -> SealPayload:
    text = SEALER.seal(sealed, "tenant", "model")
    assert len(text) <= MAX_SEAL_CHARS
    opened = SEALER.open(text, "tenant", "model")
    assert isinstance(opened, SealPayload)
    assert (opened.entry, opened.parent) == (sealed.entry, sealed.parent)
    assert (opened.chain_before, opened.head, opened.reasoning_index) == (b"b", b"h", 3)
    return opened


def test_payloads_that_fit_are_complete() -> None:
    sealed = _long_turn(4, 100)
    assert _opened(sealed) == sealed


def _noise(length: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(string.printable, k=length))


@pytest.mark.parametrize(
    ("tail", "raw", "first", "last", "lacks"),
    [
        (100, 100, 100, 100, ()),
        (20_000, 100, 100, 100, ("previous",)),
        (100, 60_000, 100, 100, ("previous", "raws")),
        (100, 60_000, 20_000, 100, ("previous", "raws", "spans")),
        (100, 100, 100, 20_000, ("previous", "raws", "ids")),
        (100, 100, 400_000, 100, ("previous", "raws", "spans")),
    ],
)
def test_parts_are_omitted_in_order(
    tail: int, raw: int, first: int, last: int, lacks: tuple[str, ...]
) -> None:
    """`tail`, `first`, `last`: lengths in tokens. `raw`: the length of text that is not shown."""
    spans = (
        EntrySpan("call", _noise(raw, 1), "{}", first, id="c0"),
        EntrySpan("reasoning", "hm", "hm", first + last),
    )
    chance = random.Random(2)
    ids = pack_ids(chance.randrange(150_000) for _ in range(first + last))
    before = PreviousTurnTail(
        "turn_0", 10, pack_ids(chance.randrange(150_000) for _ in range(tail)), ()
    )
    opened = _opened(SealPayload("turn_1", "turn_0", ids, spans, b"b", b"h", 3, before))
    assert opened.omitted == lacks
    assert (opened.previous is None) == ("previous" in lacks)
    assert all(not span.raw for span in opened.spans) == ("raws" in lacks)


def test_longer_turns_never_omit_less() -> None:
    order = ("previous", "raws", "spans", "ids")
    seen = [_opened(_long_turn(7, tokens)).omitted for tokens in range(100, 12_000, 700)]
    ranks = [max((order.index(lack) for lack in lacks), default=-1) for lacks in seen]
    assert ranks == sorted(ranks)
    assert (ranks[0], ranks[-1]) == (-1, 3)


@pytest.mark.parametrize("spans", [2, 3, 7, 40])
def test_remaining_spans_have_their_ids(spans: int) -> None:
    sealed = _long_turn(spans, 28_000 // spans)
    opened = _opened(sealed)
    assert opened.omitted[-1] in ("spans", "ids")
    count = len(opened.spans)
    assert [span.id for span in opened.spans] == [s.id for s in sealed.spans[spans - count :]]
    if opened.omitted[-1] == "spans":
        assert opened.start == sealed.spans[spans - count - 1].tokens
        assert unpack_ids(opened.generated) == unpack_ids(sealed.generated)[opened.start :]
    else:
        assert (opened.spans, opened.generated) == ((), b"")


def test_an_oversized_turn_still_gets_a_seal() -> None:
    opened = _opened(_long_turn(1, 300_000))
    assert opened.omitted == ("previous", "raws", "ids")


def test_highly_compressible_payloads_can_be_opened() -> None:
    """Repetitive output: the limit for sealing is below the limit for opening."""
    loop = "🦜" * 280_000
    sealed = SealPayload("turn_1", "turn_0", b"", (EntrySpan("text", loop, ""),), b"b", b"h", 3)
    assert _opened(sealed) == sealed


@given(sealed=SEALED, tokens=st.integers(0, 60_000), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_seals_do_not_exceed_the_size_limit(sealed: SealPayload, tokens: int, seed: int) -> None:
    ids = pack_ids(random.Random(seed).randrange(200_000) for _ in range(tokens))
    long = msgspec.structs.replace(sealed, generated=ids)
    assert len(SEALER.seal(long, "tenant", "model")) <= MAX_SEAL_CHARS


@pytest.mark.parametrize("id", ["", "x" * 256])
def test_invalid_entry_ids_are_rejected(id: str) -> None:
    with pytest.raises(ValueError, match="entry id"):
        SEALER.seal(_reasoning_payload(entry=id), "tenant", "model")
    longest = SEALER.seal(_reasoning_payload(entry="x" * 255), "tenant", "model")
    assert read_entry_id(longest) == "x" * 255

"""Finding and reading tokenizers in their various files."""

import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from real_tokenizers import folder, real

from dovetail_tokenizers import (
    Detokenizer,
    TiktokenTokenizer,
    Tokenizer,
    from_gguf,
    load_tokenizer,
    read_gguf_metadata,
)
from dovetail_tokenizers.patterns import FILE_PATTERNS, PRE_TOKENIZERS
from dovetail_tokenizers.spelling import byte_alphabet

KNOWN_IDS = [
    ("qwen3", "<|im_end|>", 151645),
    ("qwen2_5", "<|im_start|>", 151644),
    ("llama3", "<|eot_id|>", 128009),
    ("llama3_2", "<|python_tag|>", 128010),
    ("mistral_nemo", "[INST]", 3),
    ("gemma3", "<end_of_turn>", 106),
    ("deepseek_v3", "<｜Assistant｜>", 128804),
    ("qwen3_5", "<think>", 248068),
    ("mistral_tekken", "[TOOL_CALLS]", 9),
    ("gpt_oss", "<|return|>", 200002),
    ("glm4_5", "<|observation|>", 151338),
    ("kimi_k2", "<|tool_call_begin|>", 163597),
    ("smollm2", "<|im_end|>", 2),
]
# fmt: off
# ruff: noqa: E501
# Recorded from llama.cpp with the vocabularies of SmolLM2 and Mistral v3.
SMOLLM_TEXTS = [
    ("I'm you'LL we've 'S", [57, 5248, 346, 23, 16421, 392, 3543, 637, 67]),
    ("x = 12345678 + 3.14159\n\n\n  y", [104, 446, 216, 33, 34, 35, 36, 37, 38, 39, 40, 1232, 216, 35, 30, 33, 36, 33, 37, 41, 1116, 3805, 329]),
    ("def f(a,b):\n\treturn a+b  \r\n\r\n", [1604, 275, 24, 81, 28, 82, 727, 198, 197, 5406, 253, 27, 82, 256, 18682]),
    ("🦜🇨🇭👍🏽", [10813, 116, 246, 10813, 225, 118, 10813, 225, 251, 10813, 235, 231, 10813, 233, 138]),
    ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
    ("   \n   x", [333, 11181, 1792]),
    ("\t\t\tif x:\n", [1656, 197, 342, 1792, 42, 198]),
]
MISTRAL_TEXTS = [
    (" Hello", [29473, 23325]),
    ("I'm you'LL we've 'S", [1083, 29510, 29487, 1136, 29510, 6060, 1246, 29510, 1101, 1232, 29503]),
    ("漢字かなカナ 한국어 中文123", [29473, 1001, 959, 933, 29799, 30167, 30038, 30413, 30849, 29473, 30050, 31547, 30201, 29473, 29759, 29787, 29508, 29518, 29538]),
    ("🦜🇨🇭👍🏽", [29473, 1011, 930, 937, 927, 1011, 930, 906, 939, 1011, 930, 906, 944, 30963, 31775]),
    ("ß_<s>Bthe漢 <,- and漢/[INST].漢a$  Ω", [29473, 29648, 29498, 1, 1133, 2005, 1001, 959, 933, 1291, 8435, 1072, 1001, 959, 933, 29516, 3, 1610, 1001, 959, 933, 29476, 29544, 1027, 30914]),
]
# fmt: on


@pytest.mark.parametrize(("name", "spelling", "id"), KNOWN_IDS)
def test_known_control_tokens(name: str, spelling: str, id: int) -> None:
    tokenizer = real(name)
    assert tokenizer.controls[spelling] == id
    assert tokenizer.is_control(id)
    assert tokenizer.bytes_of(id) == spelling.encode()
    assert tokenizer.bytes_of(tokenizer.size) == tokenizer.bytes_of(-1) == b""


@pytest.mark.parametrize(("name", "size"), [("gpt_oss", 200019), ("glm4_5", 151365)])
def test_no_invented_tokens_above_the_vocabulary(name: str, size: int) -> None:
    assert real(name).size == size


def test_tekken_encodes_like_the_same_vocabulary_in_hf_format() -> None:
    text = "Größe: 12345 <tags>\n\tfor x in range(3):  # 漢字 🦜\r\n"
    assert real("mistral_tekken").encode(text) == real("mistral_nemo").encode(text)


@pytest.mark.parametrize(("text", "ids"), SMOLLM_TEXTS)
def test_gguf_encodes_as_llama_cpp(text: str, ids: list[int]) -> None:
    assert real("smollm2").encode(text) == ids


@pytest.mark.parametrize(("text", "ids"), MISTRAL_TEXTS)
def test_sentence_piece_encodes_as_llama_cpp(text: str, ids: list[int]) -> None:
    assert mistral().encode(text) == ids


def test_leading_space_added_by_the_vocabulary_is_retained() -> None:
    tokenizer = mistral()
    ids = tokenizer.encode_plain("Hello world")
    machine = Detokenizer(tokenizer)
    assert "".join(piece.text for piece in machine.feed(ids)) == " Hello world"
    assert tokenizer.decode(ids) == " Hello world"


@cache
def mistral() -> Tokenizer:
    """Mistral's SentencePiece vocabulary in the form of GGUF metadata."""
    names, scores, types = [], [], []
    for piece in fields((folder("mistral_spm") / "tokenizer.model").read_bytes(), 1):
        (name,) = fields(piece, 1)
        names.append(name.decode())
        scores.append(next((struct.unpack("<f", score)[0] for score in fields(piece, 2)), 0.0))
        types.append(next((kind[0] for kind in fields(piece, 3)), 1))
    return from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": names,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": types,
        }
    )


def fields(message: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the values of one field of a protocol buffer."""
    at = 0
    while at < len(message):
        tag = message[at]
        size, at = sizes(message, at + 1, tag & 7)
        if tag >> 3 == wanted:
            yield message[at : at + size]
        at += size


def sizes(message: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return the length of the value and its start. Numbers in this file have one byte."""
    if kind != 2:
        return {0: 1, 5: 4}[kind], at
    size = shift = 0
    while True:
        byte = message[at]
        at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
        if byte < 128:
            return size, at


def test_gguf_metadata_of_a_real_file() -> None:
    metadata = read_gguf_metadata(folder("smollm2") / "smollm2.gguf")
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 8192
    assert metadata["tokenizer.ggml.eos_token_id"] == 2
    assert "<|im_start|>" in str(metadata["tokenizer.chat_template"])


def pack(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def test_gguf_values_of_every_type(tmp_path: Path) -> None:
    values = [
        pack("byte") + struct.pack("<IB", 0, 7),
        pack("flag") + struct.pack("<I?", 7, True),
        pack("text") + struct.pack("<I", 8) + pack("é"),
        pack("half") + struct.pack("<Id", 12, 0.5),
        pack("list") + struct.pack("<IIQ3i", 9, 5, 3, -1, 0, 1),
        pack("words") + struct.pack("<IIQ", 9, 8, 2) + pack("a") + pack(""),
        pack("nested") + struct.pack("<IIQIQ2H", 9, 9, 1, 2, 2, 3, 4),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    file = tmp_path / "m.gguf"
    file.write_bytes(head + b"".join(values))
    assert read_gguf_metadata(file) == {
        "byte": 7,
        "flag": True,
        "text": "é",
        "half": 0.5,
        "list": [-1, 0, 1],
        "words": ["a", ""],
        "nested": [[3, 4]],
    }


DAMAGED = {
    "not_gguf": (b"ELF!" + bytes(40), "not a GGUF file"),
    "old_version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "truncated": (b"GGUF" + struct.pack("<IQQ", 3, 0, 5), "invalid GGUF metadata"),
    "long_string": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "invalid GGUF metadata"),
    "unknown_type": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pack("k") + b"\x63\0\0\0",
        "unknown value type",
    ),
    "huge_array": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pack("k") + struct.pack("<IIQ", 9, 4, 2**60),
        "an array exceeds the file",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_gguf_raises_a_clear_error(case: str, tmp_path: Path) -> None:
    content, message = DAMAGED[case]
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_gguf_metadata(file)


SPM: dict[str, object] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "<0x0A>", "▁", "a", "b", "▁a", "ab", "▁ab", "<t>"],
    "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, 0.0],
    "tokenizer.ggml.token_type": [2, 3, 6, 1, 1, 1, 1, 1, 1, 4],
}


def test_sentence_piece_merges_by_score() -> None:
    tokenizer = from_gguf(SPM)
    assert tokenizer.encode("ab a") == [8, 6], "`ab` is the better merge, then the space joins"
    assert tokenizer.encode("\n") == [3, 2]
    assert tokenizer.encode("a<s>ab<t>b") == [6, 1, 8, 9, 3, 5], "a space after every added token"
    assert tokenizer.decode([8, 6, 2]) == " ab a\n"
    assert tokenizer.encode_plain("<t>") != [9] or not tokenizer.is_control(9)
    assert set(from_gguf(SPM, controls=["<t>"]).controls) == {"<unk>", "<s>", "<t>"}


def test_sentence_piece_without_the_leading_space() -> None:
    tokenizer = from_gguf({**SPM, "tokenizer.ggml.add_space_prefix": False})
    assert tokenizer.encode("ab a") == [7, 6]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_retains_all_text(pre: str) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": list(byte_alphabet()),
        "tokenizer.ggml.merges": [],
    }
    tokenizer = from_gguf(metadata)
    text = "I'm 1234567 漢字 XMLHttp\r\n\n  def f(x): # été…\t!\u0301\U0001f99c"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


@pytest.mark.parametrize("name", ["gpt_oss", "glm4_5", "kimi_k2", "qwen3_5"])
def test_pattern_is_selected_by_file_name(name: str) -> None:
    home = folder(name)
    (file,) = (file.name for file in home.iterdir() if "tiktoken" in file.name)
    stated = json.loads((home / "tokenizer_config.json").read_bytes())["pat_str"]
    assert next(p for start, p in FILE_PATTERNS.items() if file.startswith(start)) == stated


UNREADABLE = [
    ({}, "no vocabulary"),
    ({**SPM, "tokenizer.ggml.model": "rwkv"}, "'rwkv' is not supported"),
    ({**SPM, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "new"}, "pre-tokenizer 'new'"),
    ({**SPM, "tokenizer.ggml.scores": 1}, "no scores"),
]


@pytest.mark.parametrize(("metadata", "message"), UNREADABLE)
def test_unsupported_gguf_raises_a_clear_error(metadata: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gguf(metadata)


RANKS = "\n".join(f"{encoded} {rank}" for rank, encoded in enumerate(["YQ==", "Yg==", "YWI="]))


def test_tiktoken_folder_with_its_config(tmp_path: Path) -> None:
    (tmp_path / "some.tiktoken").write_text(RANKS)
    config = {
        "pat_str": r"[ab]+",
        "added_tokens_decoder": {
            "5": {"content": "<s>", "special": True},
            "6": {"content": "<t>", "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, TiktokenTokenizer)
    assert tokenizer.encode("ab<s>ba<t>") == [2, 5, 1, 0, 6]
    assert dict(tokenizer.controls) == {"<s>": 5}
    assert dict(load_tokenizer(tmp_path, controls=["<t>"]).controls) == {"<s>": 5, "<t>": 6}
    assert tokenizer.size == 7


def test_plain_vocabulary_needs_a_known_file_name(tmp_path: Path) -> None:
    (tmp_path / "some.tiktoken").write_text(RANKS)
    with pytest.raises(ValueError, match="pat_str"):
        load_tokenizer(tmp_path)
    (tmp_path / "some.tiktoken").rename(tmp_path / "tiktoken.model")
    assert load_tokenizer(tmp_path).encode("ab") == [2]
    (tmp_path / "tiktoken.model").write_text("!\n")
    with pytest.raises(ValueError, match="line 1"):
        load_tokenizer(tmp_path)


def test_error_names_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer in"):
        load_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"gone\.json"):
        load_tokenizer(tmp_path / "gone.json")
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ValueError, match="unsupported format"):
        load_tokenizer(tmp_path / "tokenizer.model")


@pytest.mark.parametrize(("library", "extra"), [("tokenizers", "hf"), ("tiktoken", "tiktoken")])
def test_error_for_a_missing_library_names_its_extra(library: str, extra: str) -> None:
    """Also checks that importing the package imports neither library."""
    code = f"""
import sys
import dovetail_tokenizers
assert not {{"tokenizers", "tiktoken"}} & sys.modules.keys()
sys.modules[{library!r}] = None
try:
    if {extra!r} == "hf":
        dovetail_tokenizers.HfTokenizer({{"model": {{"vocab": {{}}}}}})
    else:
        dovetail_tokenizers.TiktokenTokenizer({{}}, "", {{}})
except ImportError as error:
    assert "dovetail-tokenizers[{extra}]" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", '{"model": {"vocab": {}}, "added_tokens": [{"content": "x"}]}'),
        ("tekken.json", '{"config": {}}'),
        ("tekken.json", "[]"),
    ],
)
def test_error_names_a_damaged_file(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=name):
        load_tokenizer(tmp_path)

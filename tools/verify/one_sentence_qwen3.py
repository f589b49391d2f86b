"""A tiny Qwen3 that generates one sentence, reasoning first, for every prompt.

Random weights do not end a turn, so every request of the suite would run to its token limit. Here
the embeddings of a few tokens are so large that the layers in between do not matter, and each of
these tokens has the next one as its only likely successor.
"""

import json
import random
import struct
from array import array
from itertools import pairwise
from operator import add
from pathlib import Path

from tiny_qwen3 import VOCABULARY, WIDTH, tiny_qwen3

from dovetail_tokenizers import load_tokenizer

#: The output, in tokens that are all different. Every prompt of Qwen3 ends with the first one.
SENTENCE = (
    *("\n", "<think>", "Warm", " ones", ".", "</think>", "\n\n"),
    *("Red", ",", " Orange", " and", " Yellow", "<|im_end|>"),
)
#: Closes a string and its object if a grammar does not allow the sentence to end.
CLOSING = '"}'
HEAD = "lm_head.weight"
_ROW = WIDTH * 4  # bytes


def write_one_sentence_model(folder: Path) -> Path:
    """Write the model into a new folder."""
    tiny_qwen3(folder)
    tokenizer = load_tokenizer(folder)
    chain = [id for text in SENTENCE for id in tokenizer.encode(text)]
    (closing,) = tokenizer.encode(CLOSING)
    assert len({*chain, closing}) == len(SENTENCE) + 1
    dice = random.Random(11)
    rows = {
        id: array("f", (dice.gauss(0.0, 1.0) for _ in range(WIDTH))) for id in (*chain, closing)
    }
    body = (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    head = folder / "model-00002-of-00002.safetensors"
    names = _enlarge(body, rows)
    *_, last, end = chain
    likely = {b: rows[a] for a, b in pairwise(chain)}
    likely[closing] = array("f", (value / 2 for value in rows[last]))
    likely[end] = array("f", map(add, rows[last], rows[closing]))
    _write_head(head, likely)
    places = {**dict.fromkeys(names, body.name), HEAD: head.name}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


def _enlarge(path: Path, rows: dict[int, "array[float]"]) -> list[str]:
    """Replace the embeddings of some tokens, and return the names of all tensors."""
    with path.open("r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(size))
        start = tensors["model.embed_tokens.weight"]["data_offsets"][0]
        for id, row in rows.items():
            file.seek(8 + size + start + id * _ROW)
            row.tofile(file)
    return list(tensors)


def _write_head(path: Path, rows: dict[int, "array[float]"]) -> None:
    """Write the output layer, with zeros except for the given rows."""
    shape, end = (VOCABULARY, WIDTH), VOCABULARY * _ROW
    tensor = {"dtype": "F32", "shape": shape, "data_offsets": (0, end)}
    head = json.dumps({HEAD: tensor}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for id, row in rows.items():
            file.seek(8 + len(head) + id * _ROW)
            row.tofile(file)
        file.truncate(8 + len(head) + end)

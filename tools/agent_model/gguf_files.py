"""Read weights from a GGUF file, and write LoRA adapters as GGUF and as safetensors."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
BLOCK = 32
#: Bytes per block of elements, and the elements of a block.
LAYOUTS = {F32: (4, 1), F16: (2, 1), Q4_1: (20, BLOCK), Q8_0: (34, BLOCK)}
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
ALIGNMENT = 32


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is in the file. `shape` is in the order of torch: rows first."""

    shape: tuple[int, ...]
    type: int
    start: int

    @property
    def size(self) -> int:
        block_bytes, elements = LAYOUTS[self.type]
        return int(np.prod(self.shape)) // elements * block_bytes


class GgufReader:
    """Reads metadata and tensors of a file, which may be the beginning of one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file")
            _, tensors, keys = struct.unpack("<IQQ", file.read(20))
            self.metadata = dict(_read_pair(file) for _ in range(keys))
            found = [_read_info(file) for _ in range(tensors)]
            start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        self.tensors = {
            name: TensorInfo(shape, kind, start + at) for name, shape, kind, at in found
        }

    def has(self, name: str) -> bool:
        """Return whether a tensor is completely in the file."""
        info = self.tensors[name]
        return info.start + info.size <= self.length

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as float32."""
        info = self.tensors[name]
        raw = np.fromfile(self.path, np.uint8, info.size, offset=info.start)
        return dequantize(raw, info.type).reshape(info.shape)


def dequantize(raw: np.ndarray, kind: int) -> np.ndarray:
    """Return the values of a tensor's bytes as llama.cpp computes them."""
    if kind == F32:
        return raw.view(np.float32)
    if kind == F16:
        return raw.view(np.float16).astype(np.float32)
    blocks = raw.reshape(-1, LAYOUTS[kind][0])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == Q8_0:
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    packed = blocks[:, 4:]
    values = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)
    return (values * scale + minimum).reshape(-1)


def quantize_q8_0(values: np.ndarray) -> np.ndarray:
    """Return the bytes of a tensor in 8 bits, with one scale for 32 values."""
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale).astype(np.float32)
    codes = np.clip(np.rint(blocks / divisor), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1).reshape(-1)


def write_adapter(path: Path, tensors: Mapping[str, np.ndarray], alpha: float, name: str) -> None:
    """Write a LoRA adapter for llama.cpp, in 8 bits. `tensors` have llama.cpp's names."""
    pairs: list[tuple[str, Any]] = [
        ("general.type", "adapter"),
        ("general.architecture", "llama"),
        ("general.name", name),
        ("adapter.type", "lora"),
        ("adapter.lora.alpha", float(alpha)),
    ]
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)))
        for key, value in pairs:
            file.write(_string(key) + _value(value))
        at, encoded = 0, []
        for key, values in tensors.items():
            data = quantize_q8_0(values).tobytes()
            data += bytes(-len(data) % ALIGNMENT)
            shape = values.shape[::-1]
            file.write(
                _string(key) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, Q8_0, at)
            )
            at += len(data)
            encoded.append(data)
        file.write(bytes(-file.tell() % ALIGNMENT))
        for data in encoded:
            file.write(data)


def read_adapter(path: Path) -> tuple[dict[str, np.ndarray], float]:
    """Return the tensors of an adapter and its alpha."""
    reader = GgufReader(path)
    return {name: reader.read(name) for name in reader.tensors}, float(
        reader.metadata["adapter.lora.alpha"]
    )


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write 16-bit tensors with their names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, values in tensors.items():
        size = values.size * 2
        header[name] = {
            "dtype": "F16",
            "shape": list(values.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, np.float16).tobytes())


def _read_pair(file: BinaryIO) -> tuple[str, Any]:
    key = _read_string(file)
    return key, _read_value(file, _read(file, "I"))


def _read_info(file: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _read_string(file)
    shape = [_read(file, "Q") for _ in range(_read(file, "I"))]
    return name, tuple(shape[::-1]), _read(file, "I"), _read(file, "Q")


def _read(file: BinaryIO, form: str) -> Any:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))[0]


def _read_string(file: BinaryIO) -> str:
    return file.read(_read(file, "Q")).decode("utf-8", "replace")


def _read_value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _read_string(file)
    if kind == _ARRAY:
        inner, count = _read(file, "I"), _read(file, "Q")
        return [_read_value(file, inner) for _ in range(count)]
    return _read(file, _SCALARS[kind])


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    return struct.pack("<If", 6, value)


def layer_names(reader: GgufReader) -> Iterator[int]:
    """Yield the numbers of the layers, those that are completely in the file."""
    parts = (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    )
    for layer in range(int(reader.metadata["llama.block_count"])):
        if all(reader.has(f"blk.{layer}.{part}.weight") for part in parts):
            yield layer

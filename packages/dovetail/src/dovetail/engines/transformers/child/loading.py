"""Weights from a folder onto a device, by transformers."""

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dovetail.engines.transformers.options import TransformersOptions

SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")  # over several devices
LONGEST = 1 << 20  # tokens, where a model does not say
#: Text needs none of them, and one that does not fit torch breaks the import of transformers.
UNWANTED = ("torchaudio", "torchcodec", "torchvision")
_FULL = ("out of memory", "not enough memory", "can't allocate memory")


class LoadError(Exception):
    """Why a model cannot be served, in words for whoever runs the server."""


@dataclass(frozen=True)
class Loaded:
    """A model ready to run. `defaults` is its own generation config."""

    model: Any
    device: str
    window: int
    vocabulary: int
    cache_bytes: int
    defaults: Mapping[str, Any]
    facts: Mapping[str, str]


def load_model(folder: Path, options: TransformersOptions) -> Loaded:
    """The model of a folder. Raises with the reason if it cannot be loaded."""
    for name in UNWANTED:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    torch, transformers = import_module("torch"), import_module("transformers")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = _device(torch, options.device_map)
    try:
        model = _read(transformers, folder, device, options)
    except (RuntimeError, MemoryError) as fault:
        raise LoadError(tell(fault)) from fault
    config = model.config.get_text_config()
    return Loaded(
        model=model,
        device=model.device.type,
        window=getattr(config, "max_position_embeddings", None) or LONGEST,
        vocabulary=config.vocab_size,
        cache_bytes=_cache_bytes(config, model.dtype.itemsize),
        defaults=model.generation_config.to_dict() if model.generation_config else {},
        facts={
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": str(model.config._attn_implementation),
        },
    )


def tell(fault: BaseException) -> str:
    """A fault of torch in one line."""
    said = str(fault).strip() or type(fault).__name__
    first = said.splitlines()[0]
    if isinstance(fault, MemoryError) or any(words in said for words in _FULL):
        return f"not enough memory ({first})"
    return first


def versions() -> dict[str, str]:
    """Of the two packages that do the work."""
    return {name: str(import_module(name).__version__) for name in ("torch", "transformers")}


def _device(torch: Any, wanted: str | None) -> str:
    if wanted is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise LoadError(f"device_map is {wanted!r}, and torch {torch.__version__} sees no GPU")
    return wanted


def _read(transformers: Any, folder: Path, device: str, options: TransformersOptions) -> Any:
    given: dict[str, Any] = {
        # Half precision is slower than single on most processors that have no GPU beside them.
        "dtype": options.dtype or ("float32" if device == "cpu" else "auto"),
        "attn_implementation": options.attention or "sdpa",
    }
    # Accelerate puts weights on their device as they are read.
    at_once = device in SPREAD or importlib.util.find_spec("accelerate") is not None
    if at_once:
        given["device_map"] = device
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **given)
    return (model if at_once else model.to(device)).eval()


def _cache_bytes(config: Any, item: int) -> int:
    """What one token takes in the cache of keys and values."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * shared * width * item)

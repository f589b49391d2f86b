"""Weights from a folder onto a device, by transformers."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from dovetail.engines.transformers.child.grammar import tokenizer_vocab_size
from dovetail.engines.transformers.options import TransformersOptions

MULTI_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # over several devices
OWN_ATTENTION = "dovetail"
DEFAULT_CONTEXT_TOKENS = 1 << 20  # tokens, where a model does not say
#: Text needs none of them, and one that does not fit torch breaks the import of transformers.
BLOCKED_MODULES = ("torchaudio", "torchcodec", "torchvision")
_OUT_OF_MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory")


class TransformersLoadError(Exception):
    """Why a model cannot be served, in words for whoever runs the server."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. `defaults` is its own generation config."""

    model: Any
    device: str
    context_length: int
    vocab_size: int
    tokenizer_vocab_size: int
    eos_ids: tuple[int, ...]
    kv_bytes_per_token: int
    defaults: Mapping[str, Any]
    facts: Mapping[str, str]
    own_attention: bool = False


def load_model(folder: Path, options: TransformersOptions) -> LoadedModel:
    """The model of a folder. Raises with the reason if it cannot be loaded."""
    for name in BLOCKED_MODULES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    torch, transformers = import_module("torch"), import_module("transformers")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = _choose_device(torch, options.device_map)
    try:
        model = _load(transformers, folder, device, options)
        if model.device.type == "cuda":
            torch.cuda.set_device(
                model.device
            )  # kernels of our own are launched on the current one
        own = _use_own_attention(model, options.attention)
    except (RuntimeError, MemoryError) as fault:
        raise TransformersLoadError(describe_error(fault)) from fault
    config = model.config.get_text_config()
    return LoadedModel(
        model=model,
        device=model.device.type,
        context_length=getattr(config, "max_position_embeddings", None) or DEFAULT_CONTEXT_TOKENS,
        vocab_size=config.vocab_size,
        tokenizer_vocab_size=tokenizer_vocab_size(folder, config.vocab_size),
        eos_ids=_eos_ids(model.generation_config, config),
        kv_bytes_per_token=_kv_bytes_per_token(config, model.dtype.itemsize),
        defaults=model.generation_config.to_dict() if model.generation_config else {},
        facts={
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": OWN_ATTENTION if own else str(model.config._attn_implementation),
        },
        own_attention=own,
    )


def describe_error(error: BaseException) -> str:
    """A fault of torch in one line."""
    said = str(error).strip() or type(error).__name__
    first = said.splitlines()[0]
    if isinstance(error, MemoryError) or any(words in said for words in _OUT_OF_MEMORY_PHRASES):
        return f"not enough memory ({first})"
    return first


def library_versions() -> dict[str, str]:
    """Of the two packages that do the work."""
    return {name: str(import_module(name).__version__) for name in ("torch", "transformers")}


def _choose_device(torch: Any, wanted: str | None) -> str:
    if wanted is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise TransformersLoadError(
            f"device_map is {wanted!r}, and torch {torch.__version__} sees no GPU"
        )
    return wanted


def _check_dtype(wanted: str | None) -> str | None:
    torch = import_module("torch")
    known = wanted in (None, "auto") or isinstance(getattr(torch, wanted, None), torch.dtype)
    if not known:
        raise TransformersLoadError(
            f"dtype is {wanted!r}: auto, float32, bfloat16 or float16 is wanted"
        )
    return wanted


def _load(transformers: Any, folder: Path, device: str, options: TransformersOptions) -> Any:
    # Half precision is slower than single on most processors that have no GPU beside them.
    dtype = _check_dtype(options.dtype) or ("float32" if device == "cpu" else "auto")
    attention = options.attention if options.attention not in (None, OWN_ATTENTION) else "sdpa"
    if options.load_format == "dummy":
        return _create_dummy_model(
            transformers, folder, device, {"dtype": dtype, "attn_implementation": attention}
        )
    given: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
    # Accelerate puts weights on their device as they are read.
    at_once = device in MULTI_DEVICE_MAPS or importlib.util.find_spec("accelerate") is not None
    if at_once:
        given["device_map"] = device
    read = transformers.AutoModelForCausalLM.from_pretrained
    model, found = read(folder, output_loading_info=True, **given)
    if missing := sorted(found["missing_keys"]):  # the library would make them up
        raise TransformersLoadError(f"the weights lack {missing[0]}, and {len(missing) - 1} more")
    return (model if at_once else model.to(device)).eval()


def _create_dummy_model(transformers: Any, folder: Path, device: str, given: dict[str, Any]) -> Any:
    """A model of random weights, made where it runs."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if given["dtype"] == "auto":
        given["dtype"] = config.dtype or "bfloat16"
    with import_module("torch").device(device):
        return transformers.AutoModelForCausalLM.from_config(config, **given).eval()


def _use_own_attention(model: Any, wanted: str | None) -> bool:
    """Lets a model use our kernels where they were asked for or suit it. Tells whether it does."""
    if wanted not in (None, OWN_ATTENTION):
        return False
    missing = _own_attention_obstacle(model)
    if missing is not None:
        if wanted == OWN_ATTENTION:
            raise TransformersLoadError(f"attention is {OWN_ATTENTION!r}, and {missing}")
        return False
    attention = import_module("dovetail.engines.transformers.child.attention")
    name = attention.NAME if has_batching_option("auto_switch_to_flash") else attention.OLD_NAME
    import_module("transformers").AttentionInterface.register(name, attention.paged_attention)
    # Set past the library's checks: they would look for the flash-attention package.
    for config in (model.config, model.config.get_text_config()):
        config._attn_implementation = name
    import_module("dovetail.engines.transformers.child.fusion").fuse(model)
    return True


def has_batching_option(name: str) -> bool:
    """Whether the library's batching has a setting of this name: its versions differ."""
    module = import_module("transformers.generation.configuration_utils")
    return name in {field.name for field in fields(module.ContinuousBatchingConfig)}


def _own_attention_obstacle(model: Any) -> str | None:
    """Why our kernels cannot serve a model; None if they can."""
    config = model.config.get_text_config()
    if model.device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        return f"the model is on {model.device.type}"
    if importlib.util.find_spec("triton") is None:
        return "there is no triton"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "the model's layers do not all attend to everything"
    if getattr(config, "sliding_window", None) and not getattr(config, "layer_types", None):
        return "the model attends within a window"
    if getattr(config, "attn_logit_softcapping", None) or hasattr(config, "kv_lora_rank"):
        return "the model's attention is of another kind"
    return None


def _eos_ids(*configs: Any) -> tuple[int, ...]:
    """The ids that end a turn, from the first config that names some."""
    for config in configs:
        ends = getattr(config, "eos_token_id", None)
        if ends is not None:
            return tuple(ends) if isinstance(ends, list) else (ends,)
    return ()


def _kv_bytes_per_token(config: Any, item: int) -> int:
    """What one token takes in the cache of keys and values."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * shared * width * item)

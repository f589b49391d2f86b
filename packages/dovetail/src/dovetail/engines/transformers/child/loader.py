"""Load weights from a folder onto a device, with transformers."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from dovetail.engines.transformers.child.adapter import UnsupportedAdapter, merge_adapter
from dovetail.engines.transformers.child.grammar import tokenizer_vocab_size
from dovetail.engines.transformers.options import TransformersOptions

MULTI_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
OWN_ATTENTION = "dovetail"
DEFAULT_CONTEXT_TOKENS = 1 << 20  # if the model's config does not contain it
#: Not needed for text. A version that does not match torch breaks the import of transformers.
BLOCKED_MODULES = ("torchaudio", "torchcodec", "torchvision")
_OUT_OF_MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory")


class TransformersLoadError(Exception):
    """The reason why a model cannot be served, for the operator."""


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run. `defaults` is its own generation config."""

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
    """Load the model of a folder. Raise an error with the reason if that fails."""
    for name in BLOCKED_MODULES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    torch, transformers = import_module("torch"), import_module("transformers")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = _choose_device(torch, options.device_map)
    try:
        model = _load(transformers, folder, device, options)
        if options.adapter is not None:
            merge_adapter(model, Path(options.adapter).expanduser())
        if model.device.type == "cuda":
            # Dovetail's kernels are launched on the current device
            torch.cuda.set_device(model.device)
        own = _use_own_attention(model, options.attention)
    except UnsupportedAdapter as fault:
        raise TransformersLoadError(f"the adapter {options.adapter}: {fault}") from fault
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
    """Describe an error of torch in one line."""
    message = str(error).strip() or type(error).__name__
    first = message.splitlines()[0]
    if isinstance(error, MemoryError) or any(
        phrase in message for phrase in _OUT_OF_MEMORY_PHRASES
    ):
        return f"not enough memory ({first})"
    return first


def library_versions() -> dict[str, str]:
    """Return the versions of torch and transformers."""
    return {name: str(import_module(name).__version__) for name in ("torch", "transformers")}


def _choose_device(torch: Any, wanted: str | None) -> str:
    if wanted is None:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise TransformersLoadError(
            f"`device_map` is {wanted!r}, but torch {torch.__version__} finds no GPU"
        )
    return wanted


def _check_dtype(wanted: str | None) -> str | None:
    torch = import_module("torch")
    known = wanted in (None, "auto") or isinstance(getattr(torch, wanted, None), torch.dtype)
    if not known:
        raise TransformersLoadError(
            f"`dtype` must be auto, float32, bfloat16 or float16, got {wanted!r}"
        )
    return wanted


def _load(transformers: Any, folder: Path, device: str, options: TransformersOptions) -> Any:
    # Half precision is slower than single precision on most CPUs.
    dtype = _check_dtype(options.dtype) or ("float32" if device == "cpu" else "auto")
    attention = options.attention if options.attention not in (None, OWN_ATTENTION) else "sdpa"
    if options.load_format == "dummy":
        return _create_dummy_model(
            transformers, folder, device, {"dtype": dtype, "attn_implementation": attention}
        )
    arguments: dict[str, Any] = {"dtype": dtype, "attn_implementation": attention}
    # With Accelerate, weights are put on their device as they are read.
    load_on_device = (
        device in MULTI_DEVICE_MAPS or importlib.util.find_spec("accelerate") is not None
    )
    if load_on_device:
        arguments["device_map"] = device
    from_pretrained = transformers.AutoModelForCausalLM.from_pretrained
    model, info = from_pretrained(folder, output_loading_info=True, **arguments)
    if missing_keys := sorted(info["missing_keys"]):  # the library would initialize them randomly
        raise TransformersLoadError(
            f"the weights do not contain {missing_keys[0]} and {len(missing_keys) - 1} more"
        )
    return (model if load_on_device else model.to(device)).eval()


def _create_dummy_model(
    transformers: Any, folder: Path, device: str, arguments: dict[str, Any]
) -> Any:
    """Create a model with random weights on its device."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if arguments["dtype"] == "auto":
        arguments["dtype"] = config.dtype or "bfloat16"
    with import_module("torch").device(device):
        return transformers.AutoModelForCausalLM.from_config(config, **arguments).eval()


def _use_own_attention(model: Any, wanted: str | None) -> bool:
    """Use Dovetail's kernels if requested, or if they support the model.

    Return whether they are.
    """
    if wanted not in (None, OWN_ATTENTION):
        return False
    obstacle = _own_attention_obstacle(model)
    if obstacle is not None:
        if wanted == OWN_ATTENTION:
            raise TransformersLoadError(f"`attention` cannot be {OWN_ATTENTION!r}: {obstacle}")
        return False
    attention = import_module("dovetail.engines.transformers.child.attention")
    name = attention.NAME if has_batching_option("auto_switch_to_flash") else attention.OLD_NAME
    import_module("transformers").AttentionInterface.register(name, attention.paged_attention)
    # Set directly, because the library's checks require the flash-attention package.
    for config in (model.config, model.config.get_text_config()):
        config._attn_implementation = name
    import_module("dovetail.engines.transformers.child.fusion").fuse(model)
    return True


def has_batching_option(name: str) -> bool:
    """Return whether the library's batching has this option, which depends on its version."""
    module = import_module("transformers.generation.configuration_utils")
    return name in {field.name for field in fields(module.ContinuousBatchingConfig)}


def _own_attention_obstacle(model: Any) -> str | None:
    """Return why Dovetail's kernels cannot serve a model; None if they can."""
    config = model.config.get_text_config()
    if model.device.type != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        return f"the model is on {model.device.type}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()):
        return "not all layers of the model have full attention"
    if getattr(config, "sliding_window", None) and not getattr(config, "layer_types", None):
        return "the model has sliding-window attention"
    if getattr(config, "attn_logit_softcapping", None) or hasattr(config, "kv_lora_rank"):
        return "the model has an unsupported kind of attention"
    return None


def _eos_ids(*configs: Any) -> tuple[int, ...]:
    """Return the ids that end a turn, from the first config that has any."""
    for config in configs:
        eos_ids = getattr(config, "eos_token_id", None)
        if eos_ids is not None:
            return tuple(eos_ids) if isinstance(eos_ids, list) else (eos_ids,)
    return ()


def _kv_bytes_per_token(config: Any, item: int) -> int:
    """Return the KV cache bytes per token."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * kv_heads * width * item)

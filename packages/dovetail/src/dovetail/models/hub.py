"""Find models of the Hugging Face hub in the local cache, or download them.

The `huggingface_hub` package downloads models, if it is installed. From a repository with GGUF
files, one file is used. From others, all files except the weights, which the engine downloads.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

#: `organisation/name`, optionally with one of its GGUF files: `organisation/name:Q4_K_M`.
HUB_ID_PATTERN = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?::(?P<which>[\w.-]+))?")
HUB_TIMEOUT_SECONDS = 5.0  # for listing the files of a model
WEIGHT_FILE_PATTERNS = ["*.safetensors", "*.bin", "*.pt", "*.pth", "*.onnx", "*.h5", "*.msgpack"]


def resolve_hub_model(name: str) -> Path:
    """Find or download the file or folder of a model. Raises `LookupError` that names a remedy."""
    match = HUB_ID_PATTERN.fullmatch(name)
    if match is None:
        raise LookupError(f"{name!r} is not a hub id: it must have the form organisation/name")
    id, which = match["id"], match["which"]
    cached = find_cached_model(id)
    if cached is not None:
        files = sorted(path.relative_to(cached).as_posix() for path in cached.rglob("*.gguf"))
        if not files and which is None:
            return cached
        if files and (which is None or any(_matches_variant(which, file) for file in files)):
            return cached / _select_gguf_file(id, which, files)
    return _download(id, which)


def hub_cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder where the tools of the hub store downloads."""
    named = os.environ if environment is None else environment
    if folder := named.get("HF_HUB_CACHE"):
        return Path(folder).expanduser()
    if home := named.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    shared = named.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "huggingface" / "hub"


def find_cached_model(id: str) -> Path | None:
    """Return the snapshot of the revision `main`, else the newest snapshot, or None."""
    repository = hub_cache_dir() / f"models--{id.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text(encoding="ascii").strip()
    except OSError:
        revision = ""
    if revision and (repository / "snapshots" / revision).is_dir():
        return repository / "snapshots" / revision
    snapshots = [path for path in repository.glob("snapshots/*") if path.is_dir()]
    return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)


def _download(id: str, variant: str | None) -> Path:
    if find_spec("huggingface_hub") is None:
        raise LookupError(
            f"{id} is not on this machine. To download it, run pip install huggingface_hub; "
            "without network access, pass a GGUF file or a model folder"
        )
    hub = import_module("huggingface_hub")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs every retry twice
    try:
        # This call fails fast if the hub is unreachable; the others retry for a long time.
        found = hub.model_info(id, timeout=HUB_TIMEOUT_SECONDS).siblings or ()
        files = [one.rfilename for one in found if one.rfilename.endswith(".gguf")]
        if files or variant is not None:
            return Path(hub.hf_hub_download(id, _select_gguf_file(id, variant, files)))
        return Path(hub.snapshot_download(id, ignore_patterns=WEIGHT_FILE_PATTERNS))
    except LookupError:
        raise
    except Exception as fault:  # the package raises its own errors and those of its HTTP client
        reason = str(fault).strip().splitlines()
        raise LookupError(
            f"{id} is not on this machine and cannot be downloaded "
            f"({type(fault).__name__}: {reason[0] if reason else 'no reason given'}). "
            "Without network access, pass a GGUF file or a model folder"
        ) from fault


def _select_gguf_file(id: str, variant: str | None, files: Sequence[str]) -> str:
    fitting = [file for file in files if variant is None or _matches_variant(variant, file)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        raise LookupError(f"{id} has no GGUF file for {variant!r}; files: {_format_files(files)}")
    raise LookupError(
        f"{id} has several GGUF files: select one by a part of its name, such as "
        f"{id}:{Path(fitting[0]).stem}. Files: {_format_files(fitting)}"
    )


def _matches_variant(variant: str, file: str) -> bool:
    return variant.lower() in file.lower()


def _format_files(files: Iterable[str]) -> str:
    return ", ".join(files) or "none"

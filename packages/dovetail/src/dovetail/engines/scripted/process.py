"""The scripted engine as a process of its own, in place of a vLLM server."""

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from dovetail.engines.scripted.engine import ScriptedEngine, ScriptedOptions
from dovetail.engines.scripted.reading import read_script
from dovetail.engines.scripted.server import MAX_MODEL_LEN, ScriptedServer, ServedModel
from dovetail_tokenizers import ByteTokenizer, Tokenizer, load

BACKLOG = 4_096
BYTE_CONTROLS = ("<|im_end|>", "<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class ProcessOptions:
    """What the process is started with. Without a model, text is tokenized byte by byte."""

    script: Path
    model: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    engine: ScriptedOptions = field(default_factory=ScriptedOptions)


def serve(options: ProcessOptions) -> None:
    """Serve until interrupted. Says on standard output where, once connections are taken."""
    model = served_model(options)
    script = read_script(options.script)
    engine = ScriptedEngine(model.tokenizer, script, options=options.engine, stop_ids=model.eos_ids)
    app = ScriptedServer(engine, model, on_death=lambda: os._exit(1))
    listener = _listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    sys.stdout.write(f"scripted engine: http://{address}\n")
    sys.stdout.flush()
    uvicorn.Server(configuration(app)).run(sockets=[listener])


def configuration(app: ScriptedServer) -> uvicorn.Config:
    """How uvicorn runs it: no access log, no lifespan, connections kept."""
    return uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", timeout_keep_alive=600
    )


def served_model(options: ProcessOptions) -> ServedModel:
    """What the folder says about the model, and the options where they say it better."""
    if options.model is None:
        byte = ByteTokenizer(BYTE_CONTROLS)
        names = options.served_model_name or ("scripted",)
        length = options.max_model_len or MAX_MODEL_LEN
        return ServedModel(names, byte, (byte.controls[BYTE_CONTROLS[0]],), length)
    tokenizer = load(options.model)
    read = {name: _read(options.model / f"{name}.json") for name in _FILES}
    window = options.max_model_len or read["config"].get("max_position_embeddings")
    return ServedModel(
        options.served_model_name or (options.model.resolve().name,),
        tokenizer,
        _eos_ids(read, tokenizer),
        window or MAX_MODEL_LEN,
    )


_FILES = ("config", "generation_config", "tokenizer_config")


def _eos_ids(read: Mapping[str, Mapping[str, Any]], tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokenizer's own first: vLLM tells a stop at that one from a stop at the others."""
    named = read["tokenizer_config"].get("eos_token")
    spelling = named.get("content") if isinstance(named, Mapping) else named
    ids = [tokenizer.controls.get(spelling)] if isinstance(spelling, str) else []
    for source in ("generation_config", "config"):
        given = read[source].get("eos_token_id")
        ids += given if isinstance(given, list) else [given]
    return tuple(dict.fromkeys(id for id in ids if id is not None))


def _read(path: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return read


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)

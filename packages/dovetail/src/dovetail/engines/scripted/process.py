"""The scripted engine as a process of its own, in place of a vLLM server."""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import (
    DEFAULT_MAX_MODEL_LEN,
    CompletionModel,
    read_completion_model,
)
from dovetail.engines.scripted.engine import ScriptedEngine, ScriptedOptions
from dovetail.engines.scripted.loader import load_script
from dovetail.net.listener import ListenAddress, open_listener, serve_app
from dovetail_tokenizers import ByteTokenizer

BYTE_CONTROL_TOKENS = (
    "<|im_end|>",
    "<|im_start|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)


@dataclass(frozen=True)
class ScriptedServerOptions:
    """What the process is started with. Without a model, text is tokenized byte by byte."""

    script: Path
    model: Path | None = None
    address: ListenAddress = field(default_factory=ListenAddress)
    key: str | None = None
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    engine: ScriptedOptions = field(default_factory=ScriptedOptions)


def run_server(options: ScriptedServerOptions) -> None:
    """Serve until interrupted. Says on standard output where, once connections are taken."""
    model = load_served_model(options)
    script = load_script(options.script)
    engine = ScriptedEngine(model.tokenizer, script, options=options.engine, stop_ids=model.eos_ids)
    app = CompletionsServer(
        engine,
        model,
        api_key=options.key,
        stream_batches=engine.generate_batches,
        on_engine_dead=lambda: os._exit(1),
    )
    listener, url = open_listener(options.address)
    sys.stdout.write(f"scripted engine: {url}\n")
    sys.stdout.flush()
    serve_app(app, listener)


def load_served_model(options: ScriptedServerOptions) -> CompletionModel:
    """What the folder says about the model, and the options where they say it better."""
    if options.model is not None:
        return read_completion_model(
            options.model, options.served_model_name, options.max_model_len
        )
    byte = ByteTokenizer(BYTE_CONTROL_TOKENS)
    names = options.served_model_name or ("scripted",)
    length = options.max_model_len or DEFAULT_MAX_MODEL_LEN
    return CompletionModel(names, byte, (byte.controls[BYTE_CONTROL_TOKENS[0]],), length)

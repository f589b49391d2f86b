"""`python -m dovetail.engines.scripted`: run the scripted engine as a separate process."""

import argparse
import os
import sys
from collections.abc import Sequence
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
from dovetail.engines.scripted.script import ScriptError
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
    """Options of the process. Without a model, each byte of text is one token."""

    script: Path
    model: Path | None = None
    address: ListenAddress = field(default_factory=ListenAddress)
    key: str | None = None
    served_model_name: tuple[str, ...] = ()
    max_model_len: int | None = None
    engine: ScriptedOptions = field(default_factory=ScriptedOptions)


def run_server(options: ScriptedServerOptions) -> None:
    """Serve until interrupted. Print the address when the server accepts connections."""
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
    """Return the model of the folder. Options take precedence."""
    if options.model is not None:
        return read_completion_model(
            options.model, options.served_model_name, options.max_model_len
        )
    tokenizer = ByteTokenizer(BYTE_CONTROL_TOKENS)
    names = options.served_model_name or ("scripted",)
    length = options.max_model_len or DEFAULT_MAX_MODEL_LEN
    return CompletionModel(names, tokenizer, (tokenizer.controls[BYTE_CONTROL_TOKENS[0]],), length)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and serve. Print errors in it or in the script as one line."""
    try:
        run_server(_parse_arguments(arguments))
    except (ScriptError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> ScriptedServerOptions:
    defaults = ScriptedOptions()
    parser = argparse.ArgumentParser(prog="dovetail engine scripted", description=__doc__)
    add = parser.add_argument
    add("--script", type=Path, required=True, help="the replies: a plain text or YAML file")
    add("--model", type=Path, help="folder with the tokenizer (default: one token per byte)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="port; 0 selects a free port and prints it")
    add("--uds", type=Path, help="listen on this unix socket instead of a port")
    add("--api-key", help="reject requests that do not carry this key")
    add("--served-model-name", nargs="+", default=[])
    add("--max-model-len", type=int)
    add("--prefill-rate", type=float, default=defaults.prefill_rate, help="tokens/s; 0: no limit")
    add(
        "--decode-rate",
        type=float,
        default=defaults.decode_rate,
        help="tokens/s per stream; 0: no limit",
    )
    add("--chunk", type=int, default=defaults.chunk, help="tokens per delta")
    add("--continues", action="store_true", help="continue a reply that the prompt ends with")
    add("--cache-blocks", type=int, default=defaults.cache_blocks)
    add("--block-size", type=int, default=defaults.block_size)
    add("--record", help="write prompts and outputs to this file, as JSON lines")
    parsed = parser.parse_args(arguments)
    return ScriptedServerOptions(
        script=parsed.script,
        model=parsed.model,
        address=ListenAddress(parsed.host, parsed.port, parsed.uds),
        key=parsed.api_key,
        served_model_name=tuple(parsed.served_model_name),
        max_model_len=parsed.max_model_len,
        engine=ScriptedOptions(
            prefill_rate=parsed.prefill_rate,
            decode_rate=parsed.decode_rate,
            chunk=parsed.chunk,
            continues=parsed.continues,
            cache_blocks=parsed.cache_blocks,
            block_size=parsed.block_size,
            record=parsed.record,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m dovetail.engines.scripted`: the scripted engine as a process of its own."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.engines.scripted.engine import ScriptedOptions
from dovetail.engines.scripted.process import ScriptedServerOptions, run_server
from dovetail.engines.scripted.script import ScriptError
from dovetail.net.listener import ListenAddress


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and serve. A mistake in it or in the script is told in one line."""
    try:
        run_server(_parse_arguments(arguments))
    except (ScriptError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> ScriptedServerOptions:
    usual = ScriptedOptions()
    parser = argparse.ArgumentParser(prog="dovetail engine scripted", description=__doc__)
    add = parser.add_argument
    add("--script", type=Path, required=True, help="what to play: plain text, or YAML")
    add("--model", type=Path, help="folder with the tokenizer (default: one token a byte)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one and prints it")
    add("--uds", type=Path, help="listen on this unix socket instead")
    add("--api-key", help="answer only requests that carry this key")
    add("--served-model-name", nargs="+", default=[])
    add("--max-model-len", type=int)
    add("--prefill-rate", type=float, default=usual.prefill_rate, help="tokens/s; 0: no limit")
    add("--decode-rate", type=float, default=usual.decode_rate, help="tokens/s of a stream")
    add("--chunk", type=int, default=usual.chunk, help="tokens of a delta")
    add("--continues", action="store_true", help="go on with answers that a prompt ends with")
    add("--cache-blocks", type=int, default=usual.cache_blocks)
    add("--block-size", type=int, default=usual.block_size)
    add("--record", help="write prompts and answers into this file, as lines of JSON")
    given = parser.parse_args(arguments)
    return ScriptedServerOptions(
        script=given.script,
        model=given.model,
        address=ListenAddress(given.host, given.port, given.uds),
        key=given.api_key,
        served_model_name=tuple(given.served_model_name),
        max_model_len=given.max_model_len,
        engine=ScriptedOptions(
            prefill_rate=given.prefill_rate,
            decode_rate=given.decode_rate,
            chunk=given.chunk,
            continues=given.continues,
            cache_blocks=given.cache_blocks,
            block_size=given.block_size,
            record=given.record,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.gpu --out DIR`: the experiments A to G and I, and the engine alone.

DIR/results.json is written after each round, so that an interrupted run leaves its results.
Experiments of an earlier run stay in it, unless they run again.
"""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gpu.bundle import FOLDER, lay_out_model
from benchmarks.gpu.processes import share_paths
from benchmarks.gpu.rates import Load
from benchmarks.gpu.results import Results
from benchmarks.gpu.rounds import CASES
from benchmarks.gpu.run import Settings, run

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
EXPERIMENTS = (*CASES, "G", "I")
TOKENS, QUICK_TOKENS = 52_000, 2_500
REPEATS, QUICK_REPEATS = 5, 2
ROOM = 12  # long prompts that must fit into the cache of a small model, in addition to short ones


def settings(given: Namespace) -> Settings:
    """Return the settings from the command line."""
    options = dict(one.split("=", 1) for one in given.engine_option)
    if given.attention:
        options["attention"] = given.attention
    if given.python:
        options["python"] = given.python
    tokens = given.tokens or (QUICK_TOKENS if given.quick else TOKENS)
    repeats = given.repeats or (QUICK_REPEATS if given.quick else REPEATS)
    model = given.model
    if given.cpu:
        model = lay_out_model(given.scratch / "tiny", **TINY)
        options |= {"device_map": "cpu", "cache_tokens": str(ROOM * tokens + 60_000)}
    if not list(model.glob("*.safetensors")):
        options.setdefault("load_format", "dummy")
    load = Load(streams=(1, 4), prompt_tokens=200, new_tokens=24, runs=2) if given.quick else Load()
    return Settings(
        scratch=given.scratch,
        model=model,
        chosen=chosen(given.only),
        options=options,
        tokens=tokens,
        repeats=repeats,
        load=load,
        alone=not given.no_alone,
        commit=given.commit,
        described="a tiny Qwen3" if given.cpu else "Qwen3-8B's shape, random weights",
    )


def chosen(names: str) -> list[str]:
    """Return the named experiments in order, or all if none is named."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = set(wanted) - set(EXPERIMENTS)
    if unknown:
        raise SystemExit(f"--only: {', '.join(sorted(unknown))}? {', '.join(EXPERIMENTS)} exist")
    return [name for name in EXPERIMENTS if not wanted or name in wanted]


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the results")
    add(
        "--scratch",
        type=Path,
        help="folder for prompts and logs, which is not removed (default: a temporary one)",
    )
    add("--only", default="", help="experiments to run, separated by commas")
    add("--model", type=Path, default=FOLDER / "model", help="the model's folder")
    add(
        "--repeats",
        type=int,
        help=f"number of rounds (default: {REPEATS}; A and C four times as many)",
    )
    add("--tokens", type=int, help=f"tokens of system text and tools (default: {TOKENS})")
    add("--attention", help="attention backend of the engine, as named by transformers")
    add("--engine-option", action="append", default=[], metavar="NAME=VALUE")
    add("--python", help="interpreter that has torch, if it is another one")
    add("--quick", action="store_true", help="use short prompts and few rounds")
    add("--cpu", action="store_true", help="use a tiny model on the CPU")
    add("--no-alone", action="store_true", help="do not measure the engine without the server")
    add("--commit", help="commit of the sources, if git is not available")
    given = parser.parse_args()
    given.out = given.out.resolve()
    given.out.mkdir(parents=True, exist_ok=True)
    share_paths()
    results = Results(given.out / "results.json", time.monotonic())
    with TemporaryDirectory(prefix="dovetail-gpu-") as scratch:
        given.scratch = (given.scratch or Path(scratch)).resolve()
        run(settings(given), results)


if __name__ == "__main__":
    main()

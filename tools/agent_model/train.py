"""Train the adapter: sessions from worker processes, LoRA in plain torch, loss on model turns only.

One command trains, evaluates and writes the adapter. Each step also compares the model with and
without the adapter on plain text that the model itself generated, so that chat does not change.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from batch_engine import BatchEngine
from evaluate import evaluate, transcript
from gguf_files import read_adapter, write_adapter
from model import SmolLM2
from names import Names
from packing import Pack, pack_plain, pack_shard, read_shard, run_pack
from serving import ServingPath, load_smollm2
from tasks_plain import WORKSHOP_CHAT, plain_prompt
from torch import Tensor

HERE = Path(__file__).parent


def main() -> None:
    options = parse_options()
    torch.manual_seed(options.seed)
    # cuDNN plans its attention again for every shape, and the lengths of sessions differ.
    torch.backends.cuda.enable_cudnn_sdp(False)
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        workers = start_workers(options, Path(folder))
        try:
            dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
            model = SmolLM2(options.model, options.rank, options.alpha, dtype).to(device)
            if options.adapter:
                model.load_adapter(read_adapter(options.adapter)[0])
            report(started, f"loaded {len(model.layers)} layers on {device}")
            path = ServingPath(load_smollm2(options.model))
            plain = sample_plain(model, path, options)
            report(started, f"sampled {len(plain)} plain texts")
            train(model, shards(Path(folder), workers, options), plain, options, started)
        finally:
            for worker in workers:
                worker.kill()
    target = options.out / "smollm2-agent.gguf"
    write_adapter(target, model.adapter(), model.alpha, "SmolLM2 agent")
    report(started, "saved")
    finish(model, path, options, started)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--recorded-pi", type=Path, help="recorded request of Pi")
    parser.add_argument("--adapter", type=Path, help="adapter to continue from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="stop the training after this time"
    )
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--sessions", type=int, default=96, help="sessions per shard")
    parser.add_argument("--rows", type=int, default=2, help="shards per step")
    parser.add_argument("--reuse", type=int, default=2, help="how often a shard is used")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--alpha", type=float, default=64.0)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=40, help="steps until the full rate")
    parser.add_argument("--plain-weight", type=float, default=1.0)
    parser.add_argument("--plain-texts", type=int, default=2048)
    parser.add_argument("--plain-tokens", type=int, default=160)
    parser.add_argument("--plain-rows", type=int, default=24, help="plain texts per step")
    parser.add_argument("--tasks", type=int, default=50, help="held-out tasks per harness")
    parser.add_argument("--eval-every", type=int, default=0)
    return parser.parse_args()


def start_workers(options: argparse.Namespace, folder: Path) -> list["subprocess.Popen[bytes]"]:
    """Start the processes that generate sessions."""
    found = []
    for number in range(options.workers):
        command = [sys.executable, str(HERE / "sessions.py"), "--model", str(options.model)]
        command += ["--out", str(folder), "--shards", f"{number}:100000000:{options.workers}"]
        command += ["--seed", str(options.seed), "--sessions", str(options.sessions)]
        if options.recorded_pi:
            command += ["--recorded-pi", str(options.recorded_pi)]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        found.append(subprocess.Popen(command, env=environment))
    return found


def shards(
    folder: Path, workers: list["subprocess.Popen[bytes]"], options: argparse.Namespace
) -> Iterator[Pack]:
    """Yield rows: each shard once when it arrives, and again later, in an order that is fixed."""
    lag = 24
    seen: list[Pack] = []
    number = 0
    while True:
        target = folder / f"{number:06}.npz"
        while not target.exists():
            if any(worker.poll() not in (None, 0) for worker in workers):
                raise RuntimeError("a worker failed")
            time.sleep(0.01)
        seen.append(pack_shard(read_shard(target)))
        target.unlink()
        yield seen[number]
        for round in range(1, options.reuse):
            if (earlier := number - round * lag) >= 0:
                yield seen[earlier]
        number += 1


def sample_plain(model: SmolLM2, path: ServingPath, options: argparse.Namespace) -> list[list[int]]:
    """Generate texts with the model itself, in chats without tools and as raw text."""
    rng = random.Random(f"plain {options.seed}")
    encode = path.model.tokenizer.encode
    prompts: list[list[int]] = [
        list(encode(plain_prompt(Names(rng)))) for _ in range(options.plain_texts)
    ]
    model.enable_lora(False)
    found: list[list[int]] = []
    for start in range(0, len(prompts), 256):
        part = dict(enumerate(prompts[start : start + 256]))
        engine = BatchEngine(model, len(part), options.plain_tokens + 64)
        outputs = engine.generate(part, options.plain_tokens, path.stop_id, 1.0)
        found += [part[n] + outputs[n] for n in part]
    model.enable_lora(True)
    return found


def train(
    model: SmolLM2,
    rows: Iterator[Pack],
    plain: list[list[int]],
    options: argparse.Namespace,
    started: float,
) -> None:
    """Run the steps."""
    device = model.embedding.device
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters,
        lr=options.rate,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        fused=device.type == "cuda",
    )
    rng = random.Random(f"steps {options.seed}")
    begun, tokens, waited = time.monotonic(), 0, 0.0
    for step in range(options.steps):
        fraction = max(step / options.steps, (time.monotonic() - begun) / options.seconds)
        if fraction >= 1:
            break
        rate = (
            options.rate
            * min(1.0, (step + 1) / options.warmup)
            * (0.02 + 0.98 * (1 + math.cos(math.pi * fraction)) / 2)
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses = []
        for _ in range(options.rows):
            before = time.monotonic()
            pack = next(rows)
            waited += time.monotonic() - before
            losses.append(session_loss(model, pack) / options.rows)
            losses[-1].backward()
            tokens += len(pack.ids)
        drift = plain_drift(
            model, pack_plain(rng.sample(plain, min(options.plain_rows, len(plain))))
        )
        (drift * options.plain_weight).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 25 == 0 or step < 4:
            seconds = time.monotonic() - begun
            report(
                started,
                f"step {step} loss {torch.stack(losses).sum().item():.4f} drift "
                f"{drift.item():.4f} norm {norm.item():.2f} "
                f"rate {rate:.2e} {tokens / seconds:,.0f} tokens/s waited {waited:.1f} s",
            )


def session_loss(model: SmolLM2, pack: Pack) -> Tensor:
    """Return the mean loss of the model turns."""
    chosen = np.flatnonzero(pack.mask)
    device = model.embedding.device
    hidden = run_pack(model, pack)()[torch.from_numpy(chosen - 1).to(device)]
    return F.cross_entropy(
        model.logits(hidden).float(), torch.from_numpy(pack.ids[chosen]).to(device)
    )


def plain_drift(model: SmolLM2, pack: Pack) -> Tensor:
    """Return how far the adapter moves the predictions on plain text (KL divergence)."""
    run = run_pack(model, pack)
    model.enable_lora(False)
    with torch.no_grad():
        usual = F.log_softmax(model.logits(run()).float(), -1)
    model.enable_lora(True)
    now = F.log_softmax(model.logits(run()).float(), -1)
    return F.kl_div(now, usual, log_target=True, reduction="batchmean")


def finish(model: SmolLM2, path: ServingPath, options: argparse.Namespace, started: float) -> None:
    """Evaluate with the adapter as it was written, in 8 bits."""
    model.load_adapter(read_adapter(options.out / "smollm2-agent.gguf")[0])
    results = {"perplexity": perplexities(model, path)}
    report(started, f"perplexity {results['perplexity']}")
    if options.tasks:
        figures, attempts = evaluate(path, BatchEngine, model, options.recorded_pi, options.tasks)
        texts = [transcript(path, a) for a in attempts if a.problem is not None]
        (options.out / "failures.txt").write_text("".join(texts))
        for harness, found in figures.items():
            report(started, f"{harness}: {found.summary()}")
            for failure in found.failures:
                print(f"   {failure}", flush=True)
            results[harness] = {k: v for k, v in vars(found).items() if k != "failures"}
    (options.out / "results.json").write_text(json.dumps(results, indent=1))


def perplexities(model: SmolLM2, path: ServingPath) -> dict[str, float]:
    """Return the perplexity of a text, raw and as a reply, without and with the adapter."""
    text = (HERE / "plain_text.txt").read_text()
    found = {}
    for name, head in (("raw", "<|im_start|>"), ("reply", WORKSHOP_CHAT)):
        start = list(path.model.tokenizer.encode(head))
        pack = pack_plain([start + list(path.model.tokenizer.encode(text))])
        run = run_pack(model, pack)
        targets = torch.from_numpy(pack.ids[len(start) :]).to(model.embedding.device)
        for label, enabled in (("without", False), ("with", True)):
            model.enable_lora(enabled)
            with torch.no_grad():
                logits = model.logits(run()[len(start) - 1 : -1]).float()
            found[f"{name} {label}"] = round(F.cross_entropy(logits, targets).exp().item(), 3)
    return found


def report(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f}] {text}", flush=True)


if __name__ == "__main__":
    main()

"""`dovetail export`: write a session's turns from the ledger as token ids."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from dovetail.cli.errors import fail
from dovetail.ledger.export import LedgerExporter, MissingBranch
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.store import SessionStats
from dovetail.server.build import LEDGER_FILE, open_ledger
from dovetail.settings.config import Config
from dovetail.settings.installation import default_data_dir
from dovetail.settings.sources import ConfigError, load_config
from dovetail_model import DovetailError


def export(  # noqa: PLR0913 - each is a flag
    name: Annotated[
        str,
        typer.Argument(
            metavar="SESSION",
            help="Session to export; or the id of a response, message or tool call, to export its "
            "turn and all turns before it.",
        ),
    ] = "",
    tenant: Annotated[
        str, typer.Option(help="Tenant of the turns, if the server has API keys.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Export every session of the tenant.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Only list the stored sessions, newest first.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data folder of the server, which contains the ledger.")
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="Storage of the ledger: sqlite, or the URL of a Redis.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The server's TOML settings file.")] = None,
) -> None:
    """Export a session from the ledger as token ids, for training.

    Each line is an uninterrupted sequence of turns: the token ids of prompt and output, a mask of
    the tokens that the model sampled, and their logprobs if they were stored. No tokenizer is
    needed. The server can keep running.
    """
    if (bool(name), every, listing).count(True) != 1:
        raise typer.BadParameter("exactly one of SESSION, --all and --list is required")
    try:
        settings = load_config({"data_dir": data_dir, "store": store}, os.environ, config).config
        request = _ExportRequest(name, tenant, every, listing)
        asyncio.run(_run_export(request, settings, output))
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Discard the rest of the buffer at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, DovetailError, OSError, ValueError) as error:
        fail("export", str(error))


@dataclass(frozen=True)
class _ExportRequest:
    name: str
    tenant: str
    every: bool
    listing: bool


@dataclass
class _ExportSummary:
    """Counts of what was exported, and the branches that could not be."""

    samples: int = 0
    turns: int = 0
    ids: int = 0
    chosen: int = 0
    missing_turns: list[MissingBranch] = field(default_factory=list)

    def add(self, sample: TrainingSample) -> None:
        self.samples += 1
        self.turns += len(sample.turns)
        self.ids += len(sample.ids)
        self.chosen += sum(sample.loss_mask)


async def _run_export(request: _ExportRequest, settings: Config, output: Path | None) -> None:
    async with _open_existing_ledger(settings) as ledger:
        if request.listing:
            _print_sessions(await ledger.list_sessions(request.tenant))
            return
        exporter = LedgerExporter(ledger, request.tenant)
        names = [request.name]
        if request.every:
            names = [one.session for one in await ledger.list_sessions(request.tenant)]
        elif not await exporter.find(request.name):
            names = []
        if not names:  # before the file is opened: it may hold an earlier export
            whose = f" of tenant {request.tenant!r}" if request.tenant else ""
            what = f" of {request.name!r}" if request.name else ""
            raise ValueError(f"no stored turns{what}{whose}; check --list, --tenant, --data-dir")
        summary = _ExportSummary()
        with _open_output(output) as file:
            for name in names:
                await _write_samples(exporter, name, file, summary)
    _print_summary(summary)
    if not summary.samples:
        raise typer.Exit(1)


async def _write_samples(
    exporter: LedgerExporter, name: str, file: BinaryIO, summary: _ExportSummary
) -> None:
    async for item in exporter.iter_samples(await exporter.find(name)):
        if isinstance(item, MissingBranch):
            summary.missing_turns.append(item)
        else:
            summary.add(item)
            file.write(msgspec.json.encode(item) + b"\n")


@asynccontextmanager
async def _open_existing_ledger(settings: Config) -> AsyncIterator[Ledger]:
    """Open the server's ledger. A missing one is not created."""
    folder = settings.data_dir or default_data_dir()
    if settings.store == "memory":
        raise ValueError("--store memory cannot be exported: only the server can read its memory")
    if settings.store == "sqlite" and not (folder / LEDGER_FILE).exists():
        raise ValueError(f"no stored turns in {folder}: it has no file {LEDGER_FILE}")
    ledger = open_ledger(settings, folder, serves=False)
    try:
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def _open_output(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output. Token ids are user content: a file is readable by its owner only."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file


def _print_sessions(sessions: Sequence[SessionStats]) -> None:
    for one in sessions:
        when = datetime.fromtimestamp(one.last_used).astimezone().isoformat(timespec="seconds")
        noun = "turn " if one.turns == 1 else "turns"
        typer.echo(f"{when}  {one.turns:6} {noun}  {one.session}")


def _print_summary(summary: _ExportSummary) -> None:
    typer.echo(
        f"{_pluralize(summary.samples, 'sample')}, {_pluralize(summary.turns, 'turn')}, "
        f"{summary.ids} token ids, {summary.chosen} of them sampled by the model",
        err=True,
    )
    for one in summary.missing_turns:
        typer.echo(
            f"skipped: {_pluralize(one.turns, 'turn')} from {one.entry} on; the turns before them "
            "are no longer stored",
            err=True,
        )


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

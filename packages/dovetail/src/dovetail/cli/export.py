"""`dovetail export`: a session's turns out of the ledger, as ids."""

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
            metavar="[SESSION]",
            help="A session; or the id of a response, a message or a call, for the turn that it "
            "was and all that it grew from.",
        ),
    ] = "",
    tenant: Annotated[str, typer.Option(help="Whose turns, where the server has keys.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; else stdout.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every session of the tenant.")] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="Only list the sessions that are kept, newest first.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where the server keeps its turns.")] = None,
    store: Annotated[
        str | None, typer.Option(help="What it keeps them in: sqlite, or a redis:// URL.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The server's TOML file.")] = None,
) -> None:
    """Write a session as JSON lines of token ids, for training.

    Each line is an unbroken run of turns: the ids that the engine was asked with and answered with,
    a mask of those that the model chose, and their logprobs where they were kept. No tokenizer is
    used. The server may go on meanwhile.
    """
    if (bool(name), every, listing).count(True) != 1:
        raise typer.BadParameter("one of SESSION, --all and --list is wanted")
    try:
        settings = load_config({"data_dir": data_dir, "store": store}, os.environ, config).config
        asked = _ExportRequest(name, tenant, every, listing)
        asyncio.run(_run_export(asked, settings, output))
    except BrokenPipeError:
        # Who reads has read enough (`| head`). What is left in the buffer has nowhere to go.
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
    """What was written, and what could not be."""

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


async def _run_export(asked: _ExportRequest, settings: Config, output: Path | None) -> None:
    async with _open_existing_ledger(settings) as ledger:
        if asked.listing:
            _print_sessions(await ledger.list_sessions(asked.tenant))
            return
        exporting = LedgerExporter(ledger, asked.tenant)
        names = [asked.name]
        if asked.every:
            names = [one.session for one in await ledger.list_sessions(asked.tenant)]
        elif not await exporting.find(asked.name):
            names = []
        if not names:  # before a file is opened: it may hold an earlier export
            whose = f" of tenant {asked.tenant!r}" if asked.tenant else ""
            what = f" of {asked.name!r}" if asked.name else ""
            raise ValueError(f"no turns{what}{whose} are kept: see --list, --tenant, --data-dir")
        told = _ExportSummary()
        with _open_output(output) as file:
            for name in names:
                await _write_samples(exporting, name, file, told)
    _print_summary(told)
    if not told.samples:
        raise typer.Exit(1)


async def _write_samples(
    exporting: LedgerExporter, name: str, file: BinaryIO, told: _ExportSummary
) -> None:
    async for made in exporting.iter_samples(await exporting.find(name)):
        if isinstance(made, MissingBranch):
            told.missing_turns.append(made)
        else:
            told.add(made)
            file.write(msgspec.json.encode(made) + b"\n")


@asynccontextmanager
async def _open_existing_ledger(settings: Config) -> AsyncIterator[Ledger]:
    """The server's ledger. One that does not exist is not made."""
    folder = settings.data_dir or default_data_dir()
    if settings.store == "memory":
        raise ValueError("--store memory: such turns are in the server's memory alone")
    if settings.store == "sqlite" and not (folder / LEDGER_FILE).exists():
        raise ValueError(f"no turns are kept in {folder}: no file {LEDGER_FILE} is there")
    ledger = open_ledger(settings, folder)
    try:
        yield ledger
    finally:
        await ledger.close()


@contextmanager
def _open_output(output: Path | None) -> Iterator[BinaryIO]:
    """Where to write. Ids are what was said: a file is for its owner alone."""
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


def _print_summary(told: _ExportSummary) -> None:
    typer.echo(
        f"{_pluralize(told.samples, 'sample')}, {_pluralize(told.turns, 'turn')}, {told.ids} ids, "
        f"{told.chosen} of them "
        "chosen by the model",
        err=True,
    )
    for one in told.missing_turns:
        typer.echo(
            f"left out: {_pluralize(one.turns, 'turn')} from {one.entry} on; what they grew from "
            "is not kept any more",
            err=True,
        )


def _pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

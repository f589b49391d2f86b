"""`dovetail keys`: create and check API keys for a server's key file."""

import os
import secrets
import time
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import typer

from dovetail.access.key_file import ApiKey, Budgets, KeyFileError, parse_keys, read_keys
from dovetail.access.limits import RateLimits
from dovetail.cli.errors import fail

KEY_PREFIX = "dvt_"  # lets secret scanners find a leaked key
_UNSET = -1  # a limit that the line does not set: the server's settings apply

app = typer.Typer(
    help="Create and check API keys of clients.", no_args_is_help=True, rich_markup_mode=None
)

_LimitWords = Annotated[
    list[str] | None,
    typer.Argument(
        help="Limits that differ from the server's settings, such as requests=60 tokens=100000 "
        "concurrent=8 tokens-per-day=2000000 name=ci expires=2027-01-31 admin. The value none "
        "removes a limit.",
        metavar="WORDS",
    ),
]
_KeyFileOption = Annotated[
    Path | None,
    typer.Option("--file", help="Append the line to this file, which is created if missing."),
]


@app.command("new")
def new(
    tenant: Annotated[str, typer.Argument(help="Owner of the key.", metavar="TENANT")],
    words: _LimitWords = None,
    file: _KeyFileOption = None,
) -> None:
    """Create an API key. It is shown only once: the file contains only its hash.

    A running server accepts a key within seconds after it was added to the server's key file.
    """
    text = KEY_PREFIX + secrets.token_urlsafe(32)
    line = " ".join([f"{tenant}:{sha256(text.encode()).hexdigest()}", *(words or ())])
    try:
        if [key.tenant for key in parse_keys(line.encode(errors="surrogateescape"))] != [tenant]:
            raise KeyFileError(": TENANT and WORDS must not contain line breaks")
        if "#" in line:
            raise KeyFileError(": TENANT and WORDS must not contain '#', which starts a comment")
    except KeyFileError as error:
        fail("keys", str(error).partition(": ")[2])
    if file is None:
        typer.echo(f"key:  {text}\nline: {line}")
        return
    try:
        _append_line(file, line)
    except (OSError, KeyFileError) as error:
        fail("keys", str(error))
    typer.echo(text)


@app.command("check")
def check(file: Annotated[Path, typer.Argument(metavar="FILE", help="Key file.")]) -> None:
    """Validate a key file as the server does, and list its keys with tenants and limits."""
    try:
        unset = (_UNSET, _UNSET, _UNSET)
        keys = read_keys(file, RateLimits(*unset), Budgets(*unset))
    except KeyFileError as error:
        fail("keys", str(error))
    for key in keys:
        typer.echo(_format_key(key, time.time()))


def _format_key(key: ApiKey, now: float) -> str:
    """Format a key: its tenant, the start of its hash, its limits and expiry."""
    words = [f"{key.tenant}:{key.digest.hex()[:12]}…"]
    words += [f"name={key.name}"] if key.name else []
    words += [
        f"{name.replace('_', '-')}={'none' if value is None else f'{value:.15g}'}"
        for name, value in {**asdict(key.limits), **asdict(key.budgets)}.items()
        if value != _UNSET
    ]
    words += [
        f"{key.tenant}:* {name.replace('_', '-')}={value:.15g}"
        for name, value in asdict(key.tenant_budgets).items()
        if value is not None
    ]
    if key.expires is not None:
        until = f"{datetime.fromtimestamp(key.expires, UTC):%Y-%m-%d %H:%M} UTC"
        words.append(f"expired {until}" if now >= key.expires else f"until {until}")
    return "  ".join([*words, *(["admin"] if key.admin else [])])


def _append_line(file: Path, line: str) -> None:
    """Append a line. An invalid file is not modified."""
    separator = ""
    if file.exists() and file.stat().st_size:
        read_keys(file)
        with file.open("rb") as old:
            old.seek(-1, os.SEEK_END)
            separator = "" if old.read(1) == b"\n" else "\n"
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{separator}{line}\n".encode())
    finally:
        os.close(descriptor)

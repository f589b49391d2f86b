"""`dovetail engine vllm`: run vLLM for Dovetail servers on other machines."""

import argparse
import asyncio
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.engines.registry import EngineSetupError
from dovetail.engines.steps.client import StepAddress
from dovetail.engines.steps.process import ListenOptions
from dovetail.engines.vllm.process import (
    VllmProcess,
    model_reference,
    parse_adapters,
    split_options,
)
from dovetail.telemetry.log import configure_logging
from dovetail_model import EngineUnavailable

KEY_VARIABLE = "DOVETAIL_ENGINE_API_KEY"
#: Delays before a process that has exited is restarted; the last one repeats.
RESTART_DELAYS_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
EXIT_POLL_SECONDS = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostedVllm:
    """The model, vLLM's options, and where to listen."""

    model: str
    options: dict[str, str]
    listen: ListenOptions


async def run_engine(hosted: HostedVllm) -> None:
    """Serve until SIGTERM or SIGINT. A process that exits is restarted at the same address."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    failures = 0
    while not stopping.is_set():
        process, config = _create_process(hosted)
        process.check_installed()
        try:
            address = await _start(process, config, hosted.listen, stopping)
            if address is None:
                return
            scheme = "tls" if hosted.listen.certificate else "tcp"
            url = f"{scheme}://{str(address).partition('://')[2]}"
            sys.stdout.write(f"serving {hosted.model} at {url}\n")
            sys.stdout.flush()
            failures = 0
            await _wait(process, stopping)
        except EngineUnavailable as error:
            if not failures:
                raise  # the first start: the operator reads it
            _log.error("engine_restart_failed", extra={"fields": {"reason": error.message}})
        finally:
            await process.stop()
        if not stopping.is_set():
            delay = RESTART_DELAYS_SECONDS[min(failures, len(RESTART_DELAYS_SECONDS) - 1)]
            fields = {"reason": process.describe_exit(), "restart_delay_seconds": delay}
            _log.error("engine_exited", extra={"fields": fields})
            failures += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), delay)


async def _start(
    process: VllmProcess, config: dict[str, Any], listen: ListenOptions, stopping: asyncio.Event
) -> StepAddress | None:
    """Load the model, which may take minutes. Return None if the operator stops it meanwhile."""
    loading = asyncio.create_task(process.start(config, listen=listen))
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if loading.done():
        return loading.result()
    loading.cancel()
    await asyncio.wait({loading})
    return None


def _create_process(hosted: HostedVllm) -> tuple[VllmProcess, dict[str, Any]]:
    options, arguments = split_options(hosted.options)
    path = Path(hosted.model).expanduser()
    model = model_reference(path) if path.exists() else hosted.model
    adapters = parse_adapters(options.lora_modules)
    return VllmProcess(model, options, arguments.get("download_dir")), {
        "model": model,
        "arguments": arguments,
        "adapters": adapters,
    }


async def _wait(process: VllmProcess, stopping: asyncio.Event) -> None:
    """Wait until the process has exited or the operator stops it."""
    while process.alive:
        try:
            await asyncio.wait_for(stopping.wait(), EXIT_POLL_SECONDS)
        except TimeoutError:
            continue
        return


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and serve. Errors are printed as one line."""
    configure_logging("logfmt", "info")
    try:
        asyncio.run(run_engine(_parse_arguments(arguments)))
    except (EngineUnavailable, EngineSetupError, ValueError, OSError) as error:
        sys.stderr.write(f"dovetail engine vllm: {error}\n")
        return 2
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> HostedVllm:
    parser = argparse.ArgumentParser(prog="dovetail engine vllm", description=__doc__)
    add = parser.add_argument
    add("model", help="folder or hub id of the model")
    add("--listen", default="127.0.0.1:8100", metavar="HOST:PORT", help="default: %(default)s")
    add("--api-key", help=f"key of the clients; better in the environment, as {KEY_VARIABLE}")
    add("--tls-cert-path", type=Path, help="certificate, with its chain, in PEM")
    add("--tls-key-path", type=Path, help="its key, if it is in another file")
    add("--no-tls", action="store_true", help="listen on other interfaces without TLS")
    option = "engine argument of vLLM, or option of Dovetail, such as python=PATH; repeatable"
    add("--engine-option", action="append", default=[], metavar="NAME=VALUE", help=option)
    parsed = parser.parse_args(arguments)
    key = (parsed.api_key or os.environ.get(KEY_VARIABLE, "")).strip()
    if not key:
        raise ValueError(f"a key is required: set {KEY_VARIABLE}")
    host, _, port = parsed.listen.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"--listen must be HOST:PORT, got {parsed.listen}")
    host = host.strip("[]")
    if parsed.tls_key_path and not parsed.tls_cert_path:
        raise ValueError("--tls-key-path requires --tls-cert-path")
    if not (_is_loopback(host) or parsed.tls_cert_path or parsed.no_tls):
        raise ValueError("--tls-cert-path is required on this address; --no-tls disables TLS")
    if parsed.model.startswith(("/", ".", "~")) and not Path(parsed.model).expanduser().exists():
        raise ValueError(f"model {parsed.model} not found: no such folder")
    _check_certificate(parsed.tls_cert_path, parsed.tls_key_path)
    _check_address(host, int(port))
    options = dict(_parse_option(text) for text in parsed.engine_option)
    listen = ListenOptions(host, int(port), key, parsed.tls_cert_path, parsed.tls_key_path)
    return HostedVllm(parsed.model, options, listen)


def _check_certificate(certificate: Path | None, key: Path | None) -> None:
    """Report files that cannot be used now: loading the model takes minutes."""
    if certificate is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        files = f"{certificate} and {key}" if key else f"{certificate}"
        raise ValueError(f"cannot use the certificate in {files} ({reason})") from error


def _check_address(host: str, port: int) -> None:
    """Report an address that cannot be used now: loading the model takes minutes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).partition(" (while")[0]
        raise ValueError(f"cannot listen on {host}:{port} ({reason})") from error


def _parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"--engine-option must be NAME=VALUE, got {text}")
    return name.replace("-", "_"), value


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

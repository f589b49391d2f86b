"""`dovetail verify`: the command of dovetail-verify, with a scripted server if no URL is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_urlsafe
from tempfile import TemporaryDirectory

from dovetail.launch.plan import LaunchError
from dovetail.launch.scripted_server import prepare_scripted_server
from dovetail.launch.server_process import start_server
from dovetail_verify.command import LocalServer, TargetOptions, build_command
from dovetail_verify.suite import TargetUnusable


@contextmanager
def start_scripted_server() -> Iterator[TargetOptions]:
    """Run Dovetail with a scripted model and an API key until the block exits."""
    api_key = token_urlsafe()
    with TemporaryDirectory(prefix="dovetail-verify-") as folder:
        server, log = prepare_scripted_server(Path(folder)), Path(folder) / "log" / "serve.log"
        settings = Path(folder) / "dovetail.toml"  # empty, so that the user's own is not read
        settings.touch()
        arguments = (*server.arguments, "--config", str(settings))
        try:
            with start_server(arguments, {"DOVETAIL_API_KEY": api_key}, log) as process:
                yield TargetOptions(
                    process.address, server.model, api_key, record_path=server.record_path
                )
        except LaunchError as error:
            raise TargetUnusable(str(error)) from error


verify = build_command(
    "dovetail verify", LocalServer("Dovetail itself, with a scripted model", start_scripted_server)
)

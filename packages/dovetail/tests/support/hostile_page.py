"""A web page that tries to use the server, and a real browser that loads it."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
REBOUND_NAME = "rebound.example"  # resolves to this machine, as after DNS rebinding
REPORT_TIMEOUT_SECONDS = 90.0

_PAGE = """<!doctype html><title>page</title><script>
const targets = %(targets)s, body = JSON.stringify(%(body)s), results = {};
const attempt = async (name, act) => {
  try { results[name] = await act(); } catch (error) { results[name] = "blocked"; }
};
const read = async response =>
  response.type === "opaque" ? "opaque" : `${response.status} ${await response.text()}`;
const post = (url, type, mode) => async () => read(
  await fetch(`${url}/v1/chat/completions`,
              {method: "POST", body, mode, headers: {"content-type": type}}));
const socket = url => () => new Promise(done => {
  const open = new WebSocket(`${url.replace("http", "ws")}/v1/responses`);
  open.onerror = () => done("blocked");
  open.onopen = () => { done("open"); open.close(); };
});
const image = url => () => new Promise(done => {
  const element = new Image();
  element.onload = element.onerror = () => done("requested");
  element.src = `${url}/v1/models`;
});
const form = url => () => new Promise(done => {
  const frame = document.createElement("iframe"), element = document.createElement("form");
  frame.name = `frame of ${url}`; frame.onload = () => done("requested");
  document.body.append(frame);
  Object.assign(element, {method: "POST", enctype: "text/plain", target: frame.name,
                          action: `${url}/v1/chat/completions`});
  const field = document.createElement("input");
  field.name = body.slice(0, -2) + '", "x": "'; field.value = '"}';
  element.append(field); document.body.append(element); element.submit();
});
onload = async () => {
  for (const [target, url] of Object.entries(targets)) {
    await attempt(`${target} get`, async () => read(await fetch(`${url}/v1/models`)));
    await attempt(`${target} text`, post(url, "text/plain", "cors"));
    await attempt(`${target} no-cors`, post(url, "text/plain", "no-cors"));
    await attempt(`${target} json`, post(url, "application/json", "cors"));
    await attempt(`${target} socket`, socket(url));
    await attempt(`${target} image`, image(url));
    await attempt(`${target} form`, form(url));
  }
  await fetch("/report", {method: "POST", body: JSON.stringify(results)});
};
</script><body></body>"""


@dataclass(frozen=True)
class HostilePage:
    """A server of the page on a loopback port. `reports` receives what the page achieved."""

    port: int
    reports: "asyncio.Queue[dict[str, str]]"

    async def load(self, host: str) -> dict[str, str]:
        """Load the page from this host in a browser and return its results."""
        async with _browser(f"http://{host}:{self.port}/"), asyncio.timeout(REPORT_TIMEOUT_SECONDS):
            return await self.reports.get()


def find_browser() -> str:
    """Return the path of a Chromium. Skips the test if there is none."""
    named = os.environ.get("DOVETAIL_BROWSER")
    found = named or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("no Chromium is installed: install it or set DOVETAIL_BROWSER to its path")
    return found


@asynccontextmanager
async def hostile_page(targets: Mapping[str, str], body: Any) -> AsyncIterator[HostilePage]:
    """Serve a page that attacks the `targets`, URLs by name, with this body."""
    reports: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    page = (_PAGE % {"targets": json.dumps(dict(targets)), "body": json.dumps(body)}).encode()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if head.startswith("post /report"):
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            reports.put_nowait(json.loads(await reader.readexactly(length)))
        lines = f"content-type: text/html\r\ncontent-length: {len(page)}\r\nconnection: close"
        writer.write(f"HTTP/1.1 200 OK\r\n{lines}\r\n\r\n".encode() + page)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        yield HostilePage(server.sockets[0].getsockname()[1], reports)


@asynccontextmanager
async def _browser(url: str) -> AsyncIterator[None]:
    program = find_browser()
    with TemporaryDirectory(prefix="dovetail-browser-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            program,
            *(
                "--headless",
                "--remote-debugging-port=0",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            f"--host-resolver-rules=MAP {REBOUND_NAME} 127.0.0.1",
            f"--user-data-dir={Path(profile)}",
            url,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()

"""`python -m dovetail.compare.builtin_agent`: a small coding agent, the harness `builtin`.

It works on the files of the working folder, with tools to read, write and search them and to run
commands. The arguments are one JSON object.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from dovetail.eval.agent import TaskAgent
from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.tools import (
    EditFile,
    FindText,
    ListFiles,
    ReadFile,
    RelativePath,
    TaskTool,
    ToolError,
    Workspace,
    WriteFile,
)
from dovetail.net.http_client import Endpoint
from dovetail_model import Sampling

SYSTEM_PROMPT = """\
You are a coding agent. You work on the files of one folder with the tools that you have. Read the
files that the task is about before you change them. When the task is done, report it in one short
sentence and make no more calls."""
KEY_VARIABLE = "DOVETAIL_COMPARE_KEY"
_COMMAND_TIMEOUT_SECONDS = 60.0


class AgentArguments(msgspec.Struct, frozen=True):
    """The arguments of the agent.

    `max_output_chars` limits a tool result. `follow_up`: a second prompt, after the first is done.
    """

    url: str
    model: str
    api: str
    prompt: str
    session: str
    seed: int
    max_requests: int
    max_output_chars: int
    follow_up: str | None = None
    max_tokens: int = 4096


class AgentWorkspace(Workspace):
    """A folder with files of any origin, and the limit of tool results."""

    __slots__ = ("_max_output_chars",)

    def __init__(self, root: Path, max_output_chars: int) -> None:
        super().__init__(root)
        self._max_output_chars = max_output_chars

    def read(self, path: str) -> str:
        try:
            return super().read(path)
        except UnicodeDecodeError:
            raise ToolError(f"{path!r} is not a text file") from None

    def truncate(self, text: str) -> str:
        """Remove the middle of a text that exceeds the limit."""
        excess = len(text) - self._max_output_chars
        if excess <= 0:
            return text
        half = self._max_output_chars // 2
        end = len(text) - (self._max_output_chars - half)
        return f"{text[:half]}\n[{excess} characters truncated]\n{text[end:]}"


class ReadFileTruncated(ReadFile, frozen=True):
    """Read a text file. The middle of a long file is left out."""

    path: RelativePath

    def run(self, workspace: Workspace) -> str:
        return _truncate(workspace, workspace.read(self.path))


class FindTextTruncated(FindText, frozen=True):
    """Find the lines of all files that contain a text, as path:line: text."""

    text: Annotated[str, Meta(description="The text to look for", min_length=1)]

    def run(self, workspace: Workspace) -> str:
        return _truncate(workspace, super().run(workspace))


class RunCommand(TaskTool, frozen=True):
    """Run a shell command in the folder and return its output and exit status."""

    command: Annotated[str, Meta(description="The command line, for example python main.py")]

    def run(self, workspace: Workspace) -> str:
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            cwd=workspace.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_COMMAND_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise ToolError(
                f"the command did not finish within {_COMMAND_TIMEOUT_SECONDS:g} seconds"
            ) from None
        return _truncate(workspace, f"{output}\n(exit status {process.returncode})")


TOOLS: Mapping[str, type[TaskTool]] = {
    "list_files": ListFiles,
    "read_file": ReadFileTruncated,
    "write_file": WriteFile,
    "edit_file": EditFile,
    "find_text": FindTextTruncated,
    "run_command": RunCommand,
}


def _truncate(workspace: Workspace, text: str) -> str:
    return workspace.truncate(text) if isinstance(workspace, AgentWorkspace) else text


async def run_agent(arguments: AgentArguments, folder: Path, key: str | None) -> str:
    """Run the agent in a folder. Returns the error of its last request, or an empty text."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    client = ApiClient(Endpoint.parse(arguments.url, headers), APIS[arguments.api])
    sampling = Sampling(max_tokens=arguments.max_tokens, seed=arguments.seed)
    agent = TaskAgent(
        client, arguments.model, SYSTEM_PROMPT, sampling, arguments.max_requests, TOOLS
    )
    workspace = AgentWorkspace(folder, arguments.max_output_chars)
    prompts = [arguments.prompt, *([arguments.follow_up] if arguments.follow_up else ())]
    steps = await agent.run_steps(prompts, arguments.session, workspace)
    last = steps[-1]
    return last.http_error or ", ".join(last.protocol_errors)


def main() -> int:
    """Run the agent in the working folder. The exit status is 1 after an error of the endpoint."""
    arguments = msgspec.json.decode(sys.argv[1], type=AgentArguments)
    error = asyncio.run(run_agent(arguments, Path.cwd(), os.environ.get(KEY_VARIABLE)))
    if error:
        sys.stderr.write(f"{error}\n")
    return 1 if error else 0


if __name__ == "__main__":
    sys.exit(main())

"""A small agent: send requests and run the tool calls until the task is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dovetail.engines.openai.errors import UpstreamRejection, parse_rejection
from dovetail.eval.client import ApiClient, TimedResponse
from dovetail.eval.tasks import EvalTask
from dovetail.eval.tools import (
    TOOLS,
    CheckedCall,
    TaskTool,
    ToolError,
    Workspace,
    build_tool_specs,
    check_call,
)
from dovetail_model import (
    Identity,
    Request,
    Sampling,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)


@dataclass(frozen=True)
class TaskStep:
    """One request of a task.

    `protocol_errors` are errors of the server, not of the model. `http_error` is the server's error
    instead of a response. `context_overflow`: the prompt exceeded the context length.
    """

    response: TimedResponse
    calls: tuple[CheckedCall, ...] = ()
    protocol_errors: tuple[str, ...] = ()
    http_error: str = ""
    context_overflow: bool = False


@dataclass(frozen=True)
class TaskRun:
    """The run of a task. `failure_reason` is empty if it is solved."""

    task: str
    session: str
    failure_reason: str
    steps: tuple[TaskStep, ...] = ()

    @property
    def is_solved(self) -> bool:
        return not self.failure_reason


@dataclass(frozen=True)
class TaskAgent:
    """Runs tasks on one server.

    `max_requests` bounds the requests of a task. `tools` are those that the model can call.
    """

    client: ApiClient
    model: str
    system: str
    sampling: Sampling
    max_requests: int
    tools: Mapping[str, type[TaskTool]] = field(default_factory=lambda: TOOLS)

    async def run(self, task: EvalTask, session: str) -> TaskRun:
        with TemporaryDirectory(prefix="dovetail-accept-") as scratch:
            workspace = Workspace(Path(scratch), task.records)
            for path, content in task.files.items():
                workspace.write(path, content)
            steps = await self.run_steps((task.prompt,), session, workspace)
            problem = task.check(workspace)
        return TaskRun(
            task.id,
            session,
            "" if problem is None else _failure_reason(problem, steps),
            tuple(steps),
        )

    async def run_steps(
        self, prompts: Sequence[str], session: str, workspace: Workspace
    ) -> list[TaskStep]:
        """Send requests and run the tool calls until the model ends its turn without one.

        Then the next prompt follows, if there is one.
        """
        request = Request(
            self.model,
            turns=(Turn("user", (TextBlock(prompts[0]),)),),
            system=(TextBlock(self.system),),
            tools=build_tool_specs(self.tools),
            sampling=self.sampling,
            identity=Identity(session=session),
            stream=True,
        )
        ids: set[str] = set()
        steps: list[TaskStep] = []
        later_prompts = list(prompts[1:])
        while len(steps) < self.max_requests:
            execution = _ToolExecution(workspace, self.tools)
            response = await self.client.send(request, execution.execute)
            step = _build_step(response, execution, ids)
            steps.append(step)
            if step.protocol_errors or step.http_error:
                break
            if execution.results:
                next_turn = Turn("tool", tuple(execution.results.values()))
            elif later_prompts:
                next_turn = Turn("user", (TextBlock(later_prompts.pop(0)),))
            else:
                break
            assistant_turn = Turn("assistant", response.message.blocks)
            request = msgspec.structs.replace(
                request, turns=(*request.turns, assistant_turn, next_turn)
            )
        return steps


@dataclass
class _ToolExecution:
    """The tool calls of one response, each run as soon as it is complete."""

    workspace: Workspace
    tools: Mapping[str, type[TaskTool]]
    calls: list[CheckedCall] = field(default_factory=list)
    results: dict[str, ToolResultBlock] = field(default_factory=dict)

    def execute(self, call: ToolCallBlock) -> None:
        """Run a complete call at once, while the rest of the response is still streamed."""
        checked = check_call(call.name, call.arguments, self.tools)
        self.calls.append(checked)
        text, failed = checked.problem, True
        if checked.tool is not None:
            try:
                text, failed = checked.tool.run(self.workspace), False
            except ToolError as error:
                text = str(error)
        self._add_result(call, text, failed)

    def reject(self, call: ToolCallBlock) -> None:
        """Reject an incomplete call. It is never run, even if its arguments are valid."""
        checked = check_call(call.name, call.arguments, self.tools)
        self.calls.append(CheckedCall(call.name, checked.is_known_tool, False, False))
        self._add_result(call, "the arguments are incomplete JSON: the call was not run", True)

    def _add_result(self, call: ToolCallBlock, text: str, failed: bool) -> None:
        self.results[call.id] = ToolResultBlock(call.id, (TextBlock(text),), failed)


def _build_step(response: TimedResponse, execution: _ToolExecution, ids: set[str]) -> TaskStep:
    """Evaluate a response. `ids` are the ids of earlier calls of the session."""
    exchange, message = response.exchange, response.message
    if response.connection_error:
        return TaskStep(response, protocol_errors=(response.connection_error,))
    if exchange.status != 200:
        rejection = parse_rejection(exchange.status, exchange.response)
        return TaskStep(
            response,
            http_error=_format_refusal(rejection),
            context_overflow=rejection.is_context_overflow,
        )
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    errors = tuple(_find_protocol_errors(response, calls, ids))
    for call in calls:
        if not call.complete and call.id not in execution.results:
            execution.reject(call)
    return TaskStep(response, tuple(execution.calls), errors)


def _format_refusal(rejection: UpstreamRejection) -> str:
    """Format the server's error; omit its text for a rejected key, since it may quote the key."""
    message = (
        "the server rejects the key (--api-key)"
        if rejection.status in (401, 403)
        else rejection.message
    )
    return f"status {rejection.status}: {message}"


def _find_protocol_errors(
    response: TimedResponse, calls: list[ToolCallBlock], ids: set[str]
) -> list[str]:
    message = response.message
    errors = []
    if message.failure is not None:
        errors.append(f"the stream failed: {message.failure.message}")
    if any(diagnostic.code == "malformed_chunk" for diagnostic in message.diagnostics):
        errors.append("a frame of the stream could not be parsed")
    if message.finish == "tool_calls" and not calls:
        errors.append("the stop reason is tool calls, but the response has none")
    for call in calls:
        if call.id in ids:
            errors.append(f"two tool calls of the session have the same id ({call.id})")
        ids.add(call.id)
    return errors


def _failure_reason(problem: str, steps: list[TaskStep]) -> str:
    """Return why a task is not solved: an earlier error explains more than the missing result."""
    last = steps[-1]
    if last.context_overflow:
        return "the prompt exceeded the model's context length"
    if last.http_error or last.protocol_errors:
        return last.http_error or last.protocol_errors[0]
    if last.response.message.finish == "length":
        return "a response was truncated at --max-tokens"
    if last.calls:
        return f"not done after {len(steps)} requests ({problem})"
    if not any(step.calls for step in steps):
        return "no tool was called"
    return problem

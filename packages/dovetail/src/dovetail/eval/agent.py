"""A small agent: asks, runs the calls, gives back what they gave, until the model has done."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dovetail.engines.openai.errors import UpstreamRejection, parse_rejection
from dovetail.eval.client import ApiClient, TimedResponse
from dovetail.eval.tasks import EvalTask
from dovetail.eval.tools import CheckedCall, ToolError, Workspace, build_tool_specs, check_call
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
    """One request of a task. `faults` are what was wrong with the protocol, not with the model.

    `refused` is what the server said in place of an answer, `full` that the prompt did not fit.
    """

    response: TimedResponse
    calls: tuple[CheckedCall, ...] = ()
    protocol_errors: tuple[str, ...] = ()
    http_error: str = ""
    context_overflow: bool = False


@dataclass(frozen=True)
class TaskRun:
    """A task that was done, or not: `why` says what is missing."""

    task: str
    session: str
    failure_reason: str
    steps: tuple[TaskStep, ...] = ()

    @property
    def is_solved(self) -> bool:
        return not self.failure_reason


@dataclass(frozen=True)
class TaskAgent:
    """Does tasks on one server. `turns` bounds the requests of a task."""

    client: ApiClient
    model: str
    system: str
    sampling: Sampling
    max_requests: int

    async def run(self, task: EvalTask, session: str) -> TaskRun:
        with TemporaryDirectory(prefix="dovetail-accept-") as scratch:
            folder = Workspace(Path(scratch), task.records)
            for path, content in task.files.items():
                folder.write(path, content)
            steps = await self._run_steps(task, session, folder)
            why = task.check(folder)
        return TaskRun(
            task.id, session, "" if why is None else _failure_reason(why, steps), tuple(steps)
        )

    async def _run_steps(self, task: EvalTask, session: str, folder: Workspace) -> list[TaskStep]:
        request = Request(
            self.model,
            turns=(Turn("user", (TextBlock(task.prompt),)),),
            system=(TextBlock(self.system),),
            tools=build_tool_specs(),
            sampling=self.sampling,
            identity=Identity(session=session),
            stream=True,
        )
        ids: set[str] = set()
        steps: list[TaskStep] = []
        while len(steps) < self.max_requests:
            work = _ToolExecution(folder)
            answered = await self.client.send(request, work.execute)
            step = _build_step(answered, work, ids)
            steps.append(step)
            if step.protocol_errors or step.http_error or not work.results:
                break
            said = Turn("assistant", answered.message.blocks)
            gave = Turn("tool", tuple(work.results.values()))
            request = msgspec.structs.replace(request, turns=(*request.turns, said, gave))
        return steps


@dataclass
class _ToolExecution:
    """The calls of one answer, run as they come."""

    workspace: Workspace
    calls: list[CheckedCall] = field(default_factory=list)
    results: dict[str, ToolResultBlock] = field(default_factory=dict)

    def execute(self, call: ToolCallBlock) -> None:
        """A call is complete: it is run at once, while the rest of the answer still comes."""
        judged = check_call(call.name, call.arguments)
        self.calls.append(judged)
        text, failed = judged.problem, True
        if judged.tool is not None:
            try:
                text, failed = judged.tool.run(self.workspace), False
            except ToolError as fault:
                text = str(fault)
        self._add_result(call, text, failed)

    def reject(self, call: ToolCallBlock) -> None:
        """The call has no end. It is not run, whatever its arguments look like."""
        judged = check_call(call.name, call.arguments)
        self.calls.append(CheckedCall(call.name, judged.is_known_tool, False, False))
        self._add_result(call, "the arguments are no whole JSON: the call was not run", True)

    def _add_result(self, call: ToolCallBlock, text: str, failed: bool) -> None:
        self.results[call.id] = ToolResultBlock(call.id, (TextBlock(text),), failed)


def _build_step(answered: TimedResponse, work: _ToolExecution, ids: set[str]) -> TaskStep:
    """What is to be said of an answer. `ids` are those that earlier calls of the session had."""
    exchange, message = answered.exchange, answered.message
    if answered.connection_error:
        return TaskStep(answered, protocol_errors=(answered.connection_error,))
    if exchange.status != 200:
        refusal = parse_rejection(exchange.status, exchange.answer)
        return TaskStep(
            answered,
            http_error=_format_refusal(refusal),
            context_overflow=refusal.is_context_overflow,
        )
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    faults = tuple(_find_protocol_errors(answered, calls, ids))
    for call in calls:
        if not call.complete and call.id not in work.results:
            work.reject(call)
    return TaskStep(answered, tuple(work.calls), faults)


def _format_refusal(refusal: UpstreamRejection) -> str:
    """What a server said in place of an answer. Some quote the key that they refuse."""
    words = "it refuses the key (--api-key)" if refusal.status in (401, 403) else refusal.message
    return f"status {refusal.status}: {words}"


def _find_protocol_errors(
    answered: TimedResponse, calls: list[ToolCallBlock], ids: set[str]
) -> list[str]:
    message = answered.message
    found = []
    if message.failure is not None:
        found.append(f"the stream failed: {message.failure.message}")
    if any(diagnostic.code == "malformed_chunk" for diagnostic in message.diagnostics):
        found.append("a frame of the stream could not be read")
    if message.finish == "tool_calls" and not calls:
        found.append("the answer ended for its calls, and there are none")
    for call in calls:
        if call.id in ids:
            found.append(f"two calls of a session have the same id ({call.id})")
        ids.add(call.id)
    return found


def _failure_reason(why: str, steps: list[TaskStep]) -> str:
    """Why a task is not solved: what came in between explains it better than what is missing."""
    last = steps[-1]
    if last.context_overflow:
        return "the prompt did not fit into the model's window any more"
    if last.http_error or last.protocol_errors:
        return last.http_error or last.protocol_errors[0]
    if last.response.message.finish == "length":
        return "an answer was cut at its limit of tokens"
    if last.calls:
        return f"not done after {len(steps)} requests ({why})"
    if not any(step.calls for step in steps):
        return "no tool was called"
    return why

"""A small agent: asks, runs the calls, gives back what they gave, until the model has done."""

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from dovetail.engines.openai.errors import UpstreamRejection, parse_rejection
from dovetail.eval.client import Answered, Speaker
from dovetail.eval.folder import Folder, ToolFault
from dovetail.eval.tasks import Task
from dovetail.eval.tools import Judged, judge, specs
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
class Step:
    """One request of a task. `faults` are what was wrong with the protocol, not with the model.

    `refused` is what the server said in place of an answer, `full` that the prompt did not fit.
    """

    answered: Answered
    calls: tuple[Judged, ...] = ()
    faults: tuple[str, ...] = ()
    refused: str = ""
    full: bool = False


@dataclass(frozen=True)
class Run:
    """A task that was done, or not: `why` says what is missing."""

    task: str
    session: str
    why: str
    steps: tuple[Step, ...] = ()

    @property
    def solved(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Agent:
    """Does tasks on one server. `turns` bounds the requests of a task."""

    speaker: Speaker
    model: str
    system: str
    sampling: Sampling
    turns: int

    async def run(self, task: Task, session: str) -> Run:
        with TemporaryDirectory(prefix="dovetail-accept-") as scratch:
            folder = Folder(Path(scratch), task.records)
            for path, content in task.files.items():
                folder.write(path, content)
            steps = await self._steps(task, session, folder)
            why = task.check(folder)
        return Run(task.id, session, "" if why is None else _reason(why, steps), tuple(steps))

    async def _steps(self, task: Task, session: str, folder: Folder) -> list[Step]:
        request = Request(
            self.model,
            turns=(Turn("user", (TextBlock(task.prompt),)),),
            system=(TextBlock(self.system),),
            tools=specs(),
            sampling=self.sampling,
            identity=Identity(session=session),
            stream=True,
        )
        ids: set[str] = set()
        steps: list[Step] = []
        while len(steps) < self.turns:
            work = _Work(folder)
            answered = await self.speaker.ask(request, work.take)
            step = _step(answered, work, ids)
            steps.append(step)
            if step.faults or step.refused or not work.results:
                break
            said = Turn("assistant", answered.message.blocks)
            gave = Turn("tool", tuple(work.results.values()))
            request = msgspec.structs.replace(request, turns=(*request.turns, said, gave))
        return steps


@dataclass
class _Work:
    """The calls of one answer, run as they come."""

    folder: Folder
    calls: list[Judged] = field(default_factory=list)
    results: dict[str, ToolResultBlock] = field(default_factory=dict)

    def take(self, call: ToolCallBlock) -> None:
        """A call is complete: it is run at once, while the rest of the answer still comes."""
        judged = judge(call.name, call.arguments)
        self.calls.append(judged)
        text, failed = judged.problem, True
        if judged.tool is not None:
            try:
                text, failed = judged.tool.run(self.folder), False
            except ToolFault as fault:
                text = str(fault)
        self._give(call, text, failed)

    def refuse(self, call: ToolCallBlock) -> None:
        """The call has no end. It is not run, whatever its arguments look like."""
        judged = judge(call.name, call.arguments)
        self.calls.append(Judged(call.name, judged.known, False, False))
        self._give(call, "the arguments are no whole JSON: the call was not run", True)

    def _give(self, call: ToolCallBlock, text: str, failed: bool) -> None:
        self.results[call.id] = ToolResultBlock(call.id, (TextBlock(text),), failed)


def _step(answered: Answered, work: _Work, ids: set[str]) -> Step:
    """What is to be said of an answer. `ids` are those that earlier calls of the session had."""
    exchange, message = answered.exchange, answered.message
    if answered.broke:
        return Step(answered, faults=(answered.broke,))
    if exchange.status != 200:
        refusal = parse_rejection(exchange.status, exchange.answer)
        return Step(answered, refused=_said(refusal), full=refusal.is_context_overflow)
    calls = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    faults = tuple(_faults(answered, calls, ids))
    for call in calls:
        if not call.complete and call.id not in work.results:
            work.refuse(call)
    return Step(answered, tuple(work.calls), faults)


def _said(refusal: UpstreamRejection) -> str:
    """What a server said in place of an answer. Some quote the key that they refuse."""
    words = "it refuses the key (--api-key)" if refusal.status in (401, 403) else refusal.message
    return f"status {refusal.status}: {words}"


def _faults(answered: Answered, calls: list[ToolCallBlock], ids: set[str]) -> list[str]:
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


def _reason(why: str, steps: list[Step]) -> str:
    """Why a task is not solved: what came in between explains it better than what is missing."""
    last = steps[-1]
    if last.full:
        return "the prompt did not fit into the model's window any more"
    if last.refused or last.faults:
        return last.refused or last.faults[0]
    if last.answered.message.finish == "length":
        return "an answer was cut at its limit of tokens"
    if last.calls:
        return f"not done after {len(steps)} requests ({why})"
    if not any(step.calls for step in steps):
        return "no tool was called"
    return why

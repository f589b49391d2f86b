"""A stand-in for a model, whose behavior depends on what it is shown in a known way.

It is an engine with vLLM's completions protocol. It solves the tasks of `dovetail compare` with
their own solutions, and makes more tool calls if the prompt lacks something:

- `instructions`: two more calls if the prompt does not contain a given text;
- `truncation`: one more call if a tool result was truncated;
- `reasoning`: one more call if a turn of the tool loop is shown without its reasoning, and two more
  after a follow-up prompt if the reasoning of the task is no longer shown;
- `tools`: one call of a planning tool if the prompt lists one.

The number of calls also varies at random from run to run, as a sampled model's does.
"""

import argparse
import base64
import json
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from dovetail.compare.task_set import DEFAULT_TASKS, CodingTask, load_tasks
from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import read_completion_model
from dovetail.engines.engine import EngineRequest
from dovetail.engines.scripted import ScriptedEngine
from dovetail.engines.scripted.script import Script, ScriptedReply
from dovetail.engines.scripted.selection import ReplySelector
from dovetail.net.listener import ListenAddress, open_listener, serve_app
from dovetail_tokenizers import Tokenizer

SENSITIVITIES = ("instructions", "truncation", "reasoning", "tools")
FOLLOW_UP = "Check your work once more"
_SHELL_TOOLS = {"exec_command": "cmd", "Bash": "command", "run_command": "command"}
_TRUNCATION = re.compile(r"(?:tokens|chars|characters|lines) truncated|persisted-output")
_SEGMENT = re.compile(r"<\|im_start\|>(\w+)\n(.*?)(?:<\|im_end\|>|\Z)", re.DOTALL)
_PLANNING_TOOLS = {
    "TodoWrite": {"todos": [{"content": "Do it", "status": "pending", "activeForm": "Doing it"}]},
    "TaskCreate": {"subject": "Do it", "description": "Do the task", "activeForm": "Doing it"},
    "update_plan": {"plan": [{"step": "Do it", "status": "in_progress"}]},
}
_MAX_RANDOM_LOOKS = 3


@dataclass(frozen=True)
class StandInOptions:
    """The behavior. `marker`: the text that the instructions of a known model contain.

    `long_output`: the number of lines that its first command prints.
    `compact`: it writes the arguments of calls without spaces, unlike the chat template.
    """

    sensitivities: frozenset[str]
    marker: str
    long_output: int
    compact: bool
    seed: int


class StandInModel(ReplySelector):
    """Selects a reply by the text of the prompt alone, and by chance."""

    def __init__(self, tokenizer: Tokenizer, options: StandInOptions) -> None:
        super().__init__(Script.from_text(""), tokenizer)
        self._options = options
        self._random = Random(options.seed)
        self._looks: dict[str, int] = {}  # by the beginning of the prompt
        self._tasks = load_tasks(DEFAULT_TASKS)

    def select(self, request: EngineRequest) -> ScriptedReply:
        text = self._tokenizer.decode(request.prompt)
        return ScriptedReply((self.write_reply(text),))

    def write_reply(self, prompt: str) -> str:
        """Return the next turn for a rendered prompt: a tool call, or the end."""
        shell = next((name for name in _SHELL_TOOLS if f'"name": "{name}"' in prompt), None)
        task = next((one for one in self._tasks if one.instructions[:60] in prompt), None)
        if shell is None or task is None:
            return "A coding task"
        calls = self._plan(prompt, task)
        done = _count_calls(prompt)
        if done >= len(calls):
            return "<think>\nAll is done.\n</think>\n\nThe task is done."
        name, value = calls[done]
        arguments = {_SHELL_TOOLS[shell]: value} if name == "shell" else value
        separators = (",", ":") if self._options.compact else (", ", ": ")
        written = json.dumps(arguments, separators=separators)
        call = f'{{"name": "{shell if name == "shell" else name}", "arguments": {written}}}'
        reasoning = f"<think>\nStep {done + 1}: {name}.\n</think>\n\n"
        return f"{reasoning}<tool_call>\n{call}\n</tool_call>"

    def _plan(self, prompt: str, task: CodingTask) -> list[tuple[str, object]]:
        """Return all calls of the run, given what the prompt shows so far."""
        shown, options = self._options.sensitivities, self._options
        calls: list[tuple[str, object]] = []
        tool = next((name for name in _PLANNING_TOOLS if f'"name": "{name}"' in prompt), None)
        if "tools" in shown and tool is not None:
            calls.append((tool, _PLANNING_TOOLS[tool]))
        if options.long_output:
            calls.append(("shell", f"seq 1 {options.long_output}"))
            if "truncation" in shown and _TRUNCATION.search(prompt):
                calls.append(("shell", f"seq 1 {options.long_output} | tail -n 20"))
        looks = 1 + self._draw_looks(prompt)
        looks += 2 * ("instructions" in shown and options.marker not in prompt)
        looks += "reasoning" in shown and _lacks_reasoning(prompt, before_follow_up=False)
        files = sorted(path.name for path in (task.folder / "workspace").iterdir())
        for number in range(looks):
            name = shlex.quote(files[number % len(files)])
            calls.append(("shell", "ls -A" if not number else f"head -n {10 * number} {name}"))
        calls.append(("shell", _write_solution(task)))
        if FOLLOW_UP in prompt:
            again = 1 + 2 * (
                "reasoning" in shown and _lacks_reasoning(prompt, before_follow_up=True)
            )
            calls += [("shell", f"ls -A | head -n {number + 1}") for number in range(again)]
        return calls

    def _draw_looks(self, prompt: str) -> int:
        """Return a random number, drawn for the first prompt of a run."""
        head, _, rest = prompt.partition("<|im_start|>assistant\n")
        if not rest.strip() or head not in self._looks:
            self._looks[head] = draw_random_calls(self._random)
        return self._looks[head]


def draw_random_calls(random: Random) -> int:
    """Return the number of random calls of the next run."""
    return random.randrange(_MAX_RANDOM_LOOKS)


def _assistant_turns(prompt: str) -> list[str]:
    """Return the complete turns of the model. The last one is open."""
    return [text for role, text in _SEGMENT.findall(prompt) if role == "assistant"][:-1]


def _count_calls(prompt: str) -> int:
    return sum(text.count("<tool_call>") for text in _assistant_turns(prompt))


def _lacks_reasoning(prompt: str, *, before_follow_up: bool) -> bool:
    """Return whether a turn before the follow-up, or in the loop itself, lacks its reasoning."""
    before, separator, _ = prompt.partition(FOLLOW_UP)
    if before_follow_up:
        turns = _assistant_turns(f"{before}<|im_start|>assistant\n") if separator else []
    else:
        turns = [] if separator else _assistant_turns(prompt)
    return any("<think>\nStep" not in text for text in turns if "<tool_call>" in text)


def _write_solution(task: CodingTask) -> str:
    """Return a command that writes the files of the solution."""
    parts = []
    solution = task.folder / "solution"
    for path in sorted(one for one in solution.rglob("*") if one.is_file()):
        name = shlex.quote(path.relative_to(solution).as_posix())
        content = base64.b64encode(path.read_bytes()).decode()
        parts.append(f'mkdir -p "$(dirname {name})" && echo {content} | base64 -d > {name}')
    return " && ".join(parts)


def main() -> int:
    """Serve until interrupted. Print the address when the server accepts connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder with the tokenizer")
    parser.add_argument("--sensitive", default=",".join(SENSITIVITIES))
    parser.add_argument("--marker", default="You are Codex")
    parser.add_argument("--long-output", type=int, default=0)
    parser.add_argument("--compact", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chosen = frozenset(name for name in given.sensitive.split(",") if name)
    options = StandInOptions(chosen, given.marker, given.long_output, given.compact, given.seed)
    model = read_completion_model(given.model, ("stand-in",), None)
    engine = ScriptedEngine(
        model.tokenizer,
        Script.from_text(""),
        stop_ids=model.eos_ids,
        selector=StandInModel(model.tokenizer, options),
    )
    app = CompletionsServer(
        engine,
        model,
        api_key=None,
        stream_batches=engine.generate_batches,
        on_engine_dead=lambda: os._exit(1),
    )
    listener, url = open_listener(ListenAddress("127.0.0.1", 0, None))
    sys.stdout.write(f"stand-in: {url}\n")
    sys.stdout.flush()
    serve_app(app, listener)
    return 0


if __name__ == "__main__":
    sys.exit(main())

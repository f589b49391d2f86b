"""The model's scripted turns that build the phrase book."""

from typing import Any

from codex_project import DRAFT, PHRASES, RUN_TESTS, SHOUT, TAKE_LEAVE, TESTS, adds
from codex_runs import number_calls
from server_setup import GPT_OSS, KIMI, call, text, think, turns

TASK = "Build the phrase book."
MORE = "Let it take leave, too."
AGENT_TASK = "Write the tests of the phrase book, für alle."
DONE = "The phrase book is done: größer als gedacht ✅."
WAITED_FOR = "until [ -e .git/waits ]; do sleep 0.1; done; sleep 1"
"""A result that arrives while the other model generates makes Codex cancel and retry."""
LEAVES = "It takes leave now. Tschüß!"


def _plan(*steps: tuple[str, str]) -> Any:
    made = [{"step": step, "status": status} for step, status in steps]
    return call("update_plan", explanation="Schritt für Schritt", plan=made)


def kimi() -> dict[str, Any]:
    """The complete task in Kimi's notation, including a sub-agent and a second question."""
    main = turns(
        KIMI,
        [
            think("I look at the folder first."),
            call("exec_command", cmd="ls -A"),
            think("And at what was there before it."),
            call("exec_command", cmd="git log --oneline"),
        ],
        [
            think("A plan, dann das Gerüst."),
            text("I begin with the module."),
            _plan(("Modul", "in_progress"), ("Tests", "pending")),
            think("The module: it greets quietly for now."),
            call("apply_patch", input=adds("phrasebook/__init__.py", DRAFT)),
        ],
        [
            think("The phrases are long; all of them at once."),
            call("apply_patch", input=adds("phrasebook/phrases.py", PHRASES)),
        ],
        [
            think("The tests are for somebody else."),
            call(
                "collaboration__spawn_agent",
                task_name="tests",
                message=AGENT_TASK,
                fork_turns="none",
            ),
            think("Meanwhile I count."),
            call("exec_command", cmd="grep -c № phrasebook/phrases.py"),
            call("exec_command", cmd="tail -n 2 phrasebook/phrases.py"),
        ],
        [
            think("Now I need what the agent found."),
            call("exec_command", cmd="touch .git/waits"),
            call("collaboration__wait_agent", timeout_ms=60_000),
        ],
        [think("Let us see whether they pass."), call("exec_command", cmd=RUN_TESTS)],
        [think("It is too quiet."), call("apply_patch", input=SHOUT)],
        [
            think("Again, and what has changed?"),
            call("exec_command", cmd=RUN_TESTS),
            think("Files only, no folders."),
            call("exec_command", cmd="git status --short"),
        ],
        [think("All is well."), _plan(("Modul", "completed"), ("Tests", "completed"))],
        [think("That is all."), text(DONE)],
        [think("A few lines more."), call("apply_patch", input=TAKE_LEAVE)],
        [think("Sie gehen."), text(LEAVES)],
    )
    agent = turns(
        KIMI,
        [
            think("I am asked for tests."),
            call("apply_patch", input=adds("test_phrasebook.py", TESTS)),
        ],
        [think("Not before I am waited for."), call("exec_command", cmd=WAITED_FOR)],
        [think("Written."), text("The tests lie in test_phrasebook.py.")],
    )
    return {
        "rules": [{"when": {"text": TASK}, "turns": number_calls(main)}],
        "turns": number_calls(agent),
    }


def gpt_oss() -> dict[str, Any]:
    """A shorter task in Harmony: one call per turn, and no agents."""
    main = turns(
        GPT_OSS,
        [think("I look first."), call("exec_command", cmd="ls -A")],
        [think("A plan."), _plan(("Modul", "in_progress"), ("Tests", "pending"))],
        [think("Module."), call("apply_patch", input=adds("phrasebook/__init__.py", DRAFT))],
        [think("Phrases."), call("apply_patch", input=adds("phrasebook/phrases.py", PHRASES))],
        [think("Tests."), call("apply_patch", input=adds("test_phrasebook.py", TESTS))],
        [think("Louder."), call("apply_patch", input=SHOUT)],
        [think("Do they pass?"), call("exec_command", cmd=RUN_TESTS)],
        [think("They do."), text(DONE)],
        [think("A few lines."), call("apply_patch", input=TAKE_LEAVE)],
        [think("Sie gehen."), text(LEAVES)],
    )
    return {"turns": main}

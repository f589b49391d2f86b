"""The harnesses that can be launched."""

from collections.abc import Mapping

from dovetail.launch import claude, codex, openclaw, opencode, pi
from dovetail.launch.plan import Harness, LaunchError

HARNESSES: Mapping[str, Harness] = {
    one.name: one
    for one in (
        Harness(
            name="claude",
            title="Claude Code",
            package="@anthropic-ai/claude-code",
            executable="claude",
            apis=("messages",),
            min_context_tokens=49_152,
            build_plan=claude.build_plan,
        ),
        Harness(
            name="codex",
            title="Codex",
            package="@openai/codex",
            executable="codex",
            apis=("responses", codex.WEBSOCKET_API),
            min_context_tokens=16_384,
            build_plan=codex.build_plan,
        ),
        Harness(
            name="opencode",
            title="OpenCode",
            package="opencode-ai",
            executable="opencode",
            apis=("chat", "responses"),
            min_context_tokens=16_384,
            build_plan=opencode.build_plan,
        ),
        Harness(
            name="openclaw",
            title="OpenClaw",
            package="openclaw@latest",
            executable="openclaw",
            apis=("responses", "chat", "messages"),
            min_context_tokens=24_576,
            build_plan=openclaw.build_plan,
        ),
        Harness(
            name="pi",
            title="Pi",
            package="@mariozechner/pi-coding-agent",
            executable="pi",
            apis=("responses", "chat", "messages"),
            min_context_tokens=8_192,
            build_plan=pi.build_plan,
        ),
    )
}


def get_harness(name: str | None) -> Harness:
    """Look up a harness by name. Raises LaunchError."""
    harness = HARNESSES.get(name or "")
    if harness is None:
        names = ", ".join(f"{one.name} ({one.title})" for one in HARNESSES.values())
        problem = "HARNESS is missing" if name is None else f"unknown harness {name!r}"
        raise LaunchError(f"{problem}; must be one of {names}")
    return harness

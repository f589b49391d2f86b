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
            least_window=49_152,
            plan=claude.plan,
        ),
        Harness(
            name="codex",
            title="Codex",
            package="@openai/codex",
            executable="codex",
            apis=("responses", codex.SOCKET),
            least_window=16_384,
            plan=codex.plan,
        ),
        Harness(
            name="opencode",
            title="OpenCode",
            package="opencode-ai",
            executable="opencode",
            apis=("chat", "responses"),
            least_window=16_384,
            plan=opencode.plan,
        ),
        Harness(
            name="openclaw",
            title="OpenClaw",
            package="openclaw@latest",
            executable="openclaw",
            apis=("responses", "chat", "messages"),
            least_window=24_576,
            plan=openclaw.plan,
        ),
        Harness(
            name="pi",
            title="Pi",
            package="@mariozechner/pi-coding-agent",
            executable="pi",
            apis=("responses", "chat", "messages"),
            least_window=8_192,
            plan=pi.plan,
        ),
    )
}


def harness_of(name: str | None) -> Harness:
    """The harness of a name."""
    found = HARNESSES.get(name or "")
    if found is None:
        known = ", ".join(f"{one.name} ({one.title})" for one in HARNESSES.values())
        asked = "which harness?" if name is None else f"there is no harness {name!r};"
        raise LaunchError(f"{asked} known are {known}")
    return found

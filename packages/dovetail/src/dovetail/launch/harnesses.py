"""The harnesses that can be launched."""

from collections.abc import Mapping

from dovetail.launch import claude, codex, openclaw, opencode, pi
from dovetail.launch.client_version import ClientNeeds
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
            needs=(
                ClientNeeds((2, 1, 197), 21_800, 49_152, assumed_context=200_000),
                # It loads most tools only when the model searches for them.
                ClientNeeds((2, 1, 325), 12_400, 40_960, assumed_context=1_000_000),
            ),
            build_plan=claude.build_plan,
            has_small_model=True,
        ),
        Harness(
            name="codex",
            title="Codex",
            package="@openai/codex",
            executable="codex",
            apis=("responses", codex.WEBSOCKET_API),
            needs=(ClientNeeds((0, 166, 0), 6_700, 16_384),),
            build_plan=codex.build_plan,
            has_small_model=True,
        ),
        Harness(
            name="opencode",
            title="OpenCode",
            package="opencode-ai",
            executable="opencode",
            apis=("chat", "responses"),
            needs=(ClientNeeds((1, 18, 33), 7_400, 16_384),),
            build_plan=opencode.build_plan,
            has_small_model=True,
        ),
        Harness(
            name="openclaw",
            title="OpenClaw",
            package="openclaw@latest",
            executable="openclaw",
            apis=("responses", "chat", "messages"),
            needs=(ClientNeeds((2026, 9, 6), 14_300, 24_576),),
            build_plan=openclaw.build_plan,
        ),
        Harness(
            name="pi",
            title="Pi",
            package="@earendil-works/pi-coding-agent",
            executable="pi",
            apis=("responses", "chat", "messages"),
            needs=(ClientNeeds((0, 73, 1), 1_500, 8_192),),
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

"""The stand-in model of the experiments: its number of tool calls depends on the prompt."""

import pytest
from benchmarks.compare.stand_in import FOLLOW_UP, SENSITIVITIES, StandInModel, StandInOptions

from dovetail_tokenizers import ByteTokenizer

TASK = "`age.py` computes an age by dividing days by 365, which is wrong around birthdays."
TOOLS = '<tools>\n{"name": "exec_command"}\n{"name": "%s"}\n</tools>'


def run(  # noqa: PLR0913 - each is something that the model is shown
    seed: int = 0,
    *,
    system: str = "You are Codex",
    result: str = "ok",
    keeps_reasoning: bool = True,
    tool: str = "other",
    follow_up: bool = False,
    long_output: int = 0,
) -> int:
    """Play a session with the stand-in, and return its number of calls."""
    options = StandInOptions(
        frozenset(SENSITIVITIES), "You are Codex", long_output, compact=False, seed=seed
    )
    model = StandInModel(ByteTokenizer([]), options)
    prompt = f"<|im_start|>system\n{system}\n{TOOLS % tool}<|im_end|>\n"
    prompt += f"<|im_start|>user\n{TASK}<|im_end|>\n"
    calls = 0
    for _ in range(20):
        reply = model.write_reply(f"{prompt}<|im_start|>assistant\n")
        shown = reply if keeps_reasoning else reply.partition("</think>\n\n")[2]
        prompt += f"<|im_start|>assistant\n{shown}<|im_end|>\n<|im_start|>user\n"
        if "<tool_call>" in reply:
            calls += 1
            prompt += f"<tool_response>\n{result}\n</tool_response><|im_end|>\n"
        elif follow_up:
            follow_up = False
            prompt += f"{FOLLOW_UP}<|im_end|>\n"
        else:
            return calls
    raise AssertionError("the stand-in does not end")


SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_depend_on_what_is_shown(seed: int) -> None:
    base = run(seed)
    assert 2 <= base <= 4  # the solution, and one to three looks
    assert run(seed, system="You are an agent") == base + 2
    assert run(seed, keeps_reasoning=False) == base + 1
    assert run(seed, tool="TodoWrite") == base + 1
    assert run(seed, long_output=100) == base + 1
    assert run(seed, long_output=100, result="1…9 tokens truncated…2") == base + 2
    assert run(seed, follow_up=True) == base + 1


def test_calls_vary_at_random() -> None:
    assert len({run(seed) for seed in SEEDS}) > 1

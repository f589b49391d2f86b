"""An interrupted turn makes only those turns ambiguous whose text its client may have received."""

import pytest
from forked_histories import Cluster, make_cluster, reasoning_text, run, user

from dovetail_model import TextBlock, Turn

QUESTION = user("Hi.")


async def _interrupt(cluster: Cluster, text: str) -> None:
    """Generate a turn whose client disconnects."""
    preparer = cluster.preparers[0]
    prepared = await cluster.prepare([QUESTION])
    generation = preparer.create_generation(prepared, lambda: "call_0")
    await preparer.open_turn(prepared, generation)
    generation.feed(cluster.model.tokenizer.encode(reasoning_text("Interrupted.") + text))
    await preparer.record(prepared, generation)


async def _replay_after_retry(interrupted: str, text: str) -> str:
    """Return the prompt after a turn that repeats an interrupted one, without reasoning."""
    cluster = make_cluster()
    await _interrupt(cluster, interrupted)
    await cluster.generate(None, [QUESTION], reasoning_text("Complete.") + text)
    history = [QUESTION, Turn("assistant", (TextBlock(text),)), user("And?")]
    return cluster.text(await cluster.prepare(history))


@pytest.mark.parametrize("interrupted", ["", "No, you", "It is"])
def test_other_text_is_not_ambiguous(interrupted: str) -> None:
    assert "Complete." in run(_replay_after_retry(interrupted, "It was so."))


@pytest.mark.parametrize("interrupted", ["It was so.", " It was so. And then", "It was so.\n"])
def test_text_that_the_client_may_have_received_is_ambiguous(interrupted: str) -> None:
    prompt = run(_replay_after_retry(interrupted, "It was so."))
    assert "It was so." in prompt
    assert "Complete." not in prompt
    assert "Interrupted." not in prompt

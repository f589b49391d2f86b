"""Make the context edits that a client requests, and measure their effect.

The effect is measured by rendering: an edit removes as many tokens as the prompt becomes shorter.
"""

from collections.abc import Awaitable, Callable, Sequence

from dovetail.prompt.context_edits import (
    DEFAULT_TOOL_USES_TRIGGER,
    ContextEdits,
    add_notice,
    add_removed_tokens,
    apply_edits,
    clear_thinking,
    clear_tool_uses,
    count_block_chars,
    drop_oldest_turns,
)
from dovetail.prompt.prompt import Prompt
from dovetail_model import (
    ClearThinking,
    ClearToolUses,
    ContextEdit,
    EditTrigger,
    Request,
    Turn,
)

WINDOW_SHARE_PERCENT = 80  # of the context window: the highest default trigger of an edit
TRUNCATED_SHARE_PERCENT = 75  # of the context window: what a truncated prompt fills at most
_MAX_TRUNCATIONS = 8  # attempts, because the number of tokens to drop is estimated

RenderEdited = Callable[[ContextEdits], Awaitable[Prompt]]


class ContextEditor:
    """Edits the history of one request.

    `render`: renders the prompt with these edits.
    `reasoning_turns`: the turns that have reasoning in the prompt.
    `window`: the size of the context window, if known.
    `describe`: returns what the model has to know of dropped turns, given those that remain.
    """

    def __init__(
        self,
        request: Request,
        render: RenderEdited,
        reasoning_turns: Sequence[int],
        window: int | None,
        describe: Callable[[Sequence[Turn]], str],
    ) -> None:
        self._request = request
        self._render = render
        self._reasoning_turns = reasoning_turns
        self._window = window
        self._describe = describe

    async def edit(self, edits: ContextEdits) -> tuple[Prompt, ContextEdits]:
        """Render the prompt with the edits in force and those that the request triggers."""
        prompt = await self._render(edits)
        for requested in self._request.context.edits or ():
            planned = self._plan(requested, edits, len(prompt.ids))
            if planned is None:
                continue
            candidate = await self._render(planned)
            removed = len(prompt.ids) - len(candidate.ids)
            if removed >= _min_removed(requested):
                prompt, edits = candidate, add_removed_tokens(planned, edits, removed)
        if self._request.context.truncate and self._window is not None:
            return await self._truncate(prompt, edits, self._window)
        return prompt, edits

    def _plan(
        self, requested: ContextEdit, edits: ContextEdits, prompt_tokens: int
    ) -> ContextEdits | None:
        turns = self._request.turns
        match requested:
            case ClearThinking():
                return clear_thinking(turns, edits, requested, self._reasoning_turns)
            case ClearToolUses(trigger=trigger):
                trigger = trigger or default_trigger(DEFAULT_TOOL_USES_TRIGGER, self._window)
                return clear_tool_uses(turns, edits, requested, trigger, prompt_tokens)
        return None

    async def _truncate(
        self, prompt: Prompt, edits: ContextEdits, window: int
    ) -> tuple[Prompt, ContextEdits]:
        """Drop the oldest turns if the prompt exceeds the window.

        Much more than the excess is dropped, so that the next turns fit without another truncation.
        """
        if len(prompt.ids) <= window:
            return prompt, edits
        request = self._request
        target = window * TRUNCATED_SHARE_PERCENT // 100
        chars = sum(count_block_chars(b) for turn in request.turns for b in turn.blocks)
        chars_per_token = chars / len(prompt.ids)
        for _ in range(_MAX_TRUNCATIONS):
            excess = max(1, len(prompt.ids) - target)
            planned = drop_oldest_turns(request.turns, edits, int(excess * chars_per_token))
            if planned is None:
                break
            planned = self._add_notice(planned)
            prompt, edits = await self._render(planned), planned
            if len(prompt.ids) <= target:
                break
        return prompt, edits

    def _add_notice(self, edits: ContextEdits) -> ContextEdits:
        """Add what the model has to know of the dropped turns."""
        remaining = apply_edits(self._request.turns, edits).turns
        return add_notice(edits, self._describe(remaining))


def default_trigger(trigger: EditTrigger, window: int | None) -> EditTrigger:
    """Return the default trigger of an edit: below the context window, also of a small model."""
    if window is None:
        return trigger
    return EditTrigger(trigger.kind, min(trigger.value, window * WINDOW_SHARE_PERCENT // 100))


def _min_removed(edit: ContextEdit) -> int:
    return max(1, edit.clear_at_least) if isinstance(edit, ClearToolUses) else 1

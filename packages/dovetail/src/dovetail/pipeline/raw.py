"""Raw prompts of text completions: no template, no parser, no ledger.

The client writes the model's own notation: control tokens in the text are encoded as control
tokens, and no token is inserted before the text.
"""

from array import array
from dataclasses import replace
from typing import Any

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, create_entry_id
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.models.loader import Model
from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, run_in_thread
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.pipeline.preparation import CallIdFactory, PreparedRequest
from dovetail.pipeline.recovery import NO_RECOVERY
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.token_bound import check_text_fits
from dovetail.prompt.prefix_diagnostics import PromptObservation
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail_model import Identity, InvalidRequest, Request, Thinking
from dovetail_protocols import raw_prompt

_EMPTY_HEAD = HeadDigests(b"", b"", b"", b"")


def to_raw_model(entry: TokenModel) -> TokenModel:
    """Return the model for text completions: the same pipeline with raw prompts."""
    preparer = RawPreparer(entry.model)
    return replace(entry, preparer=preparer, raw_prompts=True, recovery=NO_RECOVERY)


class RawPreparer:
    """Prepares prompts without changes and does not record turns."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._output_spec = OutputSpec(
            model.tokenizer, model.stop_ids, None, None, model.fingerprint
        )

    async def start(self) -> None:
        """Do nothing: there is no store to connect."""

    async def prepare(
        self, request: Request, harness: str = "", max_tokens: int | None = None
    ) -> PreparedRequest:
        ids = await self.render(request, max_tokens)
        return PreparedRequest(
            request=request,
            prompt=Prompt(ids, "cold", False, _EMPTY_HEAD, RecognizedHistory()),
            owner=TurnOwner(request.identity.tenant, b""),
            prefix_snapshot=PromptObservation(None, harness, ids),
            diagnosis=PrefixReport(common_tokens=0, total_tokens=len(ids), prefill_tokens=len(ids)),
        )

    async def render(self, request: Request, max_tokens: int | None = None) -> "array[int]":
        ids = array(TOKEN_ID_TYPECODE, await self._encode(request, max_tokens))
        if not ids:
            raise InvalidRequest("`prompt` must not be empty", param="prompt")
        return ids

    async def count_tokens(
        self, request: Request, window: int | None = None, *, edit: bool = True
    ) -> int:
        return len(await self._encode(request))

    def template_switches(self, thinking: Thinking) -> dict[str, Any]:
        """Return no switches: raw prompts use no template."""
        return {}

    def create_generation(
        self, prepared: PreparedRequest, new_call_id: CallIdFactory
    ) -> Generation:
        return Generation(
            self._output_spec,
            prepared.prompt,
            prepared.owner,
            prepared.request,
            entry_id=create_entry_id(),
            new_call_id=new_call_id,
        )

    async def open_turn(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Do nothing: a text completion is not a turn."""

    async def close_turn(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Do nothing: a text completion is not a turn."""

    async def record(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Do nothing: a text completion is not a turn."""

    async def predict_next_prompt(
        self, prepared: PreparedRequest, generation: Generation
    ) -> "array[int] | None":
        """Return None: the continuation of a text is unknown."""
        return None

    async def shared_prompt_prefix(self, request: Request) -> "array[int] | None":
        """Return None: texts have no known common prefix."""
        return None

    def release_session(self, identity: Identity) -> None:
        """Do nothing: text completions hold nothing for a session."""

    async def close(self) -> None:
        """Do nothing: there is no store to close."""

    async def _encode(self, request: Request, max_tokens: int | None = None) -> list[int]:
        prompt = raw_prompt(request)
        if isinstance(prompt, str):
            return await run_in_thread(len(prompt), lambda: self._encode_text(prompt, max_tokens))
        largest = max(prompt, default=0)
        if largest >= self._model.tokenizer.size:
            message = f"`prompt` contains token id {largest}, which the model does not have"
            raise InvalidRequest(message, param="prompt")
        return list(prompt)

    def _encode_text(self, text: str, max_tokens: int | None) -> list[int]:
        tokenizer = self._model.tokenizer
        if max_tokens is not None and len(text) >= MIN_HUGE_SIZE:
            check_text_fits(text, tokenizer, max_tokens)
        return tokenizer.encode(text)  # control tokens in the text stay control tokens

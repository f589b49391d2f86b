"""Raw prompts: what a text completion goes on from. No template, no parser, no ledger.

Whoever sends one writes the model's own language: the spelling of a control token is that token,
and nothing is put before the text.
"""

from array import array
from dataclasses import replace
from typing import Any

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, create_entry_id
from dovetail.ledger.recognition import RecognizedHistory
from dovetail.models.loader import Model
from dovetail.pipeline.beside import beside
from dovetail.pipeline.generation import Generation, Owner, Voice
from dovetail.pipeline.preparation import CallIds, Prepared
from dovetail.pipeline.registry import Served
from dovetail.prompt.diagnosis import PrefixReport
from dovetail.prompt.prefix_diagnostics import PromptObservation
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail_model import InvalidRequest, Request, Thinking
from dovetail_protocols import raw_prompt

_HEAD = HeadDigests(b"", b"", b"", b"")


def raw(served: Served) -> Served:
    """The same model for text completions: the pipeline is the same, what it prepares is not."""
    return replace(served, preparer=RawPreparer(served.model))


class RawPreparer:
    """Prepares prompts that nobody may touch, and keeps nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._voice = Voice(model.tokenizer, model.stop_ids, None, None, model.fingerprint)
        self.records_first = False

    async def prepare(self, request: Request, harness: str = "") -> Prepared:
        ids = array(TOKEN_ID_TYPECODE, await self._ids(request))
        if not ids:
            raise InvalidRequest("prompt: there is nothing in it", param="prompt")
        return Prepared(
            request=request,
            prompt=Prompt(ids, "cold", False, _HEAD, RecognizedHistory()),
            owner=Owner(request.identity.tenant, b""),
            sighting=PromptObservation(None, harness, ids),
            diagnosis=PrefixReport(common_tokens=0, total_tokens=len(ids), prefill_tokens=len(ids)),
        )

    async def count(self, request: Request) -> int:
        return len(await self._ids(request))

    def steering(self, thinking: Thinking) -> dict[str, Any]:
        """There is no template to be steered."""
        return {}

    def generation(self, prepared: Prepared, new_call_id: CallIds) -> Generation:
        return Generation(
            self._voice,
            prepared.prompt,
            prepared.owner,
            prepared.request,
            entry_id=create_entry_id(),
            new_call_id=new_call_id,
        )

    async def record(self, prepared: Prepared, generation: Generation) -> None:
        """A text is no turn: nothing would come back to it."""

    async def expected(self, prepared: Prepared, generation: Generation) -> "array[int] | None":
        """Nobody knows what follows a text."""
        return None

    async def opening(self, request: Request) -> "array[int] | None":
        """Nor what else begins with one."""
        return None

    async def close(self) -> None:
        """Nothing was kept."""

    async def _ids(self, request: Request) -> list[int]:
        prompt = raw_prompt(request)
        if isinstance(prompt, str):
            encode = self._model.tokenizer.encode  # spelled-out control tokens are meant
            return await beside(len(prompt), lambda: encode(prompt))
        largest = max(prompt, default=0)
        if largest >= self._model.tokenizer.size:
            raise InvalidRequest(f"prompt: the model has no token {largest}", param="prompt")
        return list(prompt)

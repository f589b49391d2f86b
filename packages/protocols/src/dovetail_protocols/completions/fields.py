"""The fields of text completions."""

from dovetail_protocols.chat.fields import SHARED_FIELDS
from dovetail_protocols.engine_fields import ENGINE_FIELDS
from dovetail_protocols.fields import Field, FieldRegistry
from dovetail_protocols.nvext_fields import NVEXT_FIELDS

_OWN = (
    Field(
        "prompt",
        "input",
        "Once",
        "A text, a list of one text, token ids, or a list of one list of token ids; several "
        "prompts are an error.",
    ),
    Field(
        "echo",
        "input",
        True,
        "The response starts with the prompt; an error with token ids, or with `logprobs`.",
        neutral=(False,),
    ),
    Field(
        "logprobs",
        "sampling",
        2,
        "A number: tokens, their log probabilities and offsets, and that many alternatives.",
        "engine",
    ),
    Field("suffix", "input", "end", "Text insertion.", "rejected", ("",)),
    Field("best_of", "sampling", 3, "An error if it differs from `n`."),
    Field("response_format", "constraint", {"type": "json_object"}, "As in Chat Completions."),
)

COMPLETION_FIELDS = FieldRegistry("completions", _OWN, SHARED_FIELDS, ENGINE_FIELDS, NVEXT_FIELDS)

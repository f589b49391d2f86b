"""What an upstream server returns in the form of its own API, for a client of the same API."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec


class ResponseFields(msgspec.Struct, frozen=True, tag="response_fields"):
    """Fields of the response object of an upstream server. Later events complete earlier ones.

    `api`: The API of the upstream.
    `fields`: The values by name, without those that the client's own response object determines.
    """

    type: ClassVar[Literal["response_fields"]] = "response_fields"
    api: str
    fields: Mapping[str, Any]


class HostedItem(msgspec.Struct, frozen=True, tag="hosted_item"):
    """A frame about an output item of the Responses API that no other event represents.

    Such items belong to tools that the upstream server runs.
    `index`: Counts these items of the response.
    `kind`: The type of the frame: `response.output_item.added`, `response.output_item.done`, or
        one between them.
    `fields`: The fields of the frame that do not depend on the position in the response.
    `item`: The state of the item, in the first and the last frame about it.
    """

    type: ClassVar[Literal["hosted_item"]] = "hosted_item"
    index: int
    kind: str
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    item: Mapping[str, Any] | None = None

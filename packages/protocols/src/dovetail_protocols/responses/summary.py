"""The summary that replaces a compacted conversation, and its transport by the client.

A request that ends with a trigger requests the summary. The harness stores the item in place of the
conversation and sends it back unchanged. The content of the item is opaque to the client, so it
contains the summary itself, and any replica can read it. It is packed, not encrypted: it contains
nothing that the client could not have requested from the model.
"""

import base64
import binascii

_MARK = "dovetail.summary."


def pack_summary(summary: str) -> str:
    """Encode the summary as the opaque content of a compaction item."""
    return _MARK + base64.urlsafe_b64encode(summary.encode()).decode()


def unpack_summary(content: str) -> str | None:
    """Decode the summary in the content; None if another server created it."""
    if not content.startswith(_MARK):
        return None
    try:
        packed = content[len(_MARK) :].encode()
        return base64.b64decode(packed, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return None

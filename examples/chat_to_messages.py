"""Convert a Chat stream from a file (chat.sse) to a Messages stream.

The stream of an OpenAI-compatible server is converted for an Anthropic client while it arrives,
with reasoning and tool calls in their original order.
"""

import sys
import time
import uuid
from pathlib import Path

from dovetail_protocols.chat import ChatReader
from dovetail_protocols.messages import CODEC

REQUEST = b'{"model": "some-model", "messages": [{"role": "user", "content": "Mend the test."}]}'

reader = ChatReader()
encoder = CODEC.stream(
    CODEC.decode(REQUEST, {}), lambda prefix: prefix + uuid.uuid4().hex, time.time
)
with Path(__file__).with_name("chat.sse").open("rb") as recording:
    while chunk := recording.read(64):
        sys.stdout.buffer.write(encoder.encode(reader.feed(chunk)))
sys.stdout.buffer.write(encoder.encode(reader.finish()))

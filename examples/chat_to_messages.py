"""A Chat stream from a file (chat.sse), turned into the Messages stream of the same answer.

What an OpenAI-compatible server sends becomes what an Anthropic client can read, thoughts and
calls in their order, while it arrives.
"""

import sys
import time
import uuid
from pathlib import Path

from dovetail_protocols.chat import ChatReader
from dovetail_protocols.messages import CODEC

ASKED = b'{"model": "some-model", "messages": [{"role": "user", "content": "Mend the test."}]}'

reader = ChatReader()
answer = CODEC.stream(CODEC.decode(ASKED, {}), lambda prefix: prefix + uuid.uuid4().hex, time.time)
with Path(__file__).with_name("chat.sse").open("rb") as recording:
    while chunk := recording.read(64):
        sys.stdout.buffer.write(answer.encode(reader.feed(chunk)))
sys.stdout.buffer.write(answer.encode(reader.finish()))

"""Options of the engine `vllm`."""

import msgspec


class VllmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options by the names that the documentation uses.

    `stream_interval` is the tokens of a frame of the stream, to reduce the work of both sides
    with many streams. `silence` is the read timeout in seconds: a server sends nothing during a
    long prefill. `probe` says whether to probe at the start, by requests of a few tokens, what
    the server enforces; without it constraints are assumed to be enforced.
    """

    stream_interval: int | None = None
    silence: float = 600.0
    probe: bool = True

"""What an operator can say about a vLLM."""

import msgspec


class VllmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stream_interval`: tokens in a frame of the stream, to spare both sides work when many are
    served at once. `silence`: seconds without a word after which a request is given up; a long
    prompt is read in silence. `probe`: whether to find out at the start, by requests of a few
    tokens, what the server keeps to; without it constraints are believed to be enforced.
    """

    stream_interval: int | None = None
    silence: float = 600.0
    probe: bool = True

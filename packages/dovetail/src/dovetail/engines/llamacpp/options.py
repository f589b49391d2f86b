"""What an operator can say about the embedded engine."""

from typing import Annotated

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class LlamaCppOptions(msgspec.Struct, frozen=True):
    """Options by the names that the documentation uses. None chooses what suits the machine.

    `slots` generations run at once, each with a whole context window of its own: memory grows
    with them. `host_cache_mib` is the room in which prompts are kept that lost their slot, so that
    more sessions than slots keep their cached prefix. A prompt is read in batches of `batch`
    tokens: between two of them a generation can be cancelled, and another one take its turn.
    `logs` passes on what llama.cpp says. `tcp` makes it listen on a loopback port, as it must
    where there are no unix sockets.
    """

    slots: PositiveInt = 2
    threads: PositiveInt | None = None
    gpu_layers: int | None = None
    batch: PositiveInt = 512
    host_cache_mib: int = 1024
    logs: bool = False
    tcp: bool = False
    start_timeout: float = 600.0

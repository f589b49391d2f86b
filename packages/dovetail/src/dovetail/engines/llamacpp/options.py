"""Options of the engine `llamacpp`."""

from typing import Annotated

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class LlamaCppOptions(msgspec.Struct, frozen=True):
    """Options by the names that the documentation uses. None selects a default for the machine.

    `slots` generations run at once, each with a context window of its own: memory grows with
    them. `host_cache_mib` is host memory for prompts that lost their slot, so that more sessions
    than slots retain their cached prefix. A prompt is prefilled in batches of `batch` tokens:
    between two of them a generation can be cancelled, and another one can run. `logs` forwards
    llama.cpp's log. `tcp` makes it listen on a loopback port, which is required where there are
    no unix sockets.
    """

    slots: PositiveInt = 2
    threads: PositiveInt | None = None
    gpu_layers: int | None = None
    batch: PositiveInt = 512
    host_cache_mib: int = 1024
    logs: bool = False
    tcp: bool = False
    start_timeout: float = 600.0

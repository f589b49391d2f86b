"""Options of the engine `transformers`, and the configuration of its child process."""

from typing import Annotated, Literal

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class TransformersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options by the names that the documentation uses. None selects a default for the machine.

    `python` is the interpreter that has torch; None is the one that runs the server.
    `device_map` is a device (`cpu`, `cuda`, `cuda:1`) or `auto`, `dtype` and `attention` are
    transformers' own names; `attention` may also be `dovetail`, our own kernels, which None
    selects on a GPU where the model allows them. `load_format` `dummy` creates random weights
    from the config alone, for measurements. `cuda_graphs` replays a decode step instead of
    launching it anew, with our kernels.

    `max_batch` generations run at once, the others wait. A prompt is prefilled
    `max_batch_tokens` at a time; between two of those a generation can be cancelled.
    `cache_tokens` is the capacity of the KV cache, in pages of `page_size` tokens, which are
    also the units in which prefixes are shared. `logs` forwards the log of the process; `tcp`
    makes it listen on a loopback port, which is required where there are no unix sockets.
    """

    python: str | None = None
    device_map: str | None = None
    dtype: str | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    attention: str | None = None
    cuda_graphs: bool = True
    max_batch: PositiveInt = 64
    max_batch_tokens: PositiveInt | None = None
    cache_tokens: PositiveInt | None = None
    page_size: Annotated[int, msgspec.Meta(ge=4)] | None = None
    threads: PositiveInt | None = None
    logs: bool = False
    tcp: bool = False
    start_timeout: float = 600.0


class TransformersChildConfig(msgspec.Struct, frozen=True):
    """The model, where to listen, and additional import paths of the child."""

    model: str
    key: str
    socket: str | None = None
    context_length: int | None = None
    options: TransformersOptions = TransformersOptions()
    paths: tuple[str, ...] = ()

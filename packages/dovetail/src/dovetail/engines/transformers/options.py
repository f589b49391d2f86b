"""Options of the engine `transformers`, and the configuration of its child process."""

from typing import Annotated, Literal

import msgspec

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class TransformersOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine's options, by the names in the documentation. None selects a default.

    `python`: the interpreter that has torch; by default, the one that runs the server.
    `device_map`: a device (`cpu`, `cuda`, `cuda:1`) or `auto`.
    `dtype`: by transformers' names.
    `adapter`: a folder with a LoRA adapter of PEFT, which is merged into the weights.
    `load_format`: `dummy` creates random weights from the config alone, for measurements.
    `attention`: by transformers' names, or `dovetail` for Dovetail's own kernels, which are the
    default on a GPU if the model allows them.
    `cuda_graphs`: replay decode steps instead of launching each kernel. Requires Dovetail's
    kernels.
    `max_batch`: generations that run at once. Others wait.
    `max_batch_tokens`: tokens per prefill batch. Between two batches a generation can be cancelled.
    `cache_tokens`: the capacity of the KV cache.
    `page_size`: tokens per page of the KV cache. Prefixes are shared in units of pages.
    `logs`: forward the log of the process.
    `tcp`: listen on a loopback port, which is required on systems without unix sockets.
    """

    python: str | None = None
    device_map: str | None = None
    dtype: str | None = None
    adapter: str | None = None
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
    """The model, its context length if it is set, and the options."""

    model: str
    context_length: int | None = None
    options: TransformersOptions = TransformersOptions()

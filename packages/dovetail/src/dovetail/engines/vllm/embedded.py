"""vLLM in a child process of this server, and the choice between it and a running server."""

import logging
from functools import partial
from typing import Any

from dovetail.engines.engine import TokenEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.steps.engine import ChildEngine
from dovetail.engines.steps.remote import RemoteStepEngine
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.engines.vllm.process import (
    VllmProcess,
    model_reference,
    parse_adapters,
    split_options,
)

_log = logging.getLogger(__name__)


class EmbeddedVllmEngine(ChildEngine):
    """vLLM's `AsyncLLM` in a child process, for one folder of weights or hub id."""

    async def start(self) -> None:
        """Load the model. The log states which way the output takes."""
        assert isinstance(self._process, VllmProcess)
        self._process.check_installed()
        await super().start()
        self.log_loaded()

    def log_loaded(self) -> None:
        """Log the version of vLLM, the way of the output and the context window."""
        assert self._client is not None
        description = self._client.description
        fields: dict[str, Any] = {"engine": self.name, **description.facts}
        fields |= {"context_length": description.context_length}
        _log.info("engine_loaded", extra={"fields": fields})


def create_embedded(setup: EngineSetup) -> EmbeddedVllmEngine:
    """Create the engine for a model on this machine, or one that vLLM downloads."""
    if setup.model is None:
        raise EngineSetupError("the engine 'vllm' requires a model, or --engine-url")
    options, arguments = split_options(setup.options)
    model = model_reference(setup.model)
    if setup.context_length is not None:
        arguments.setdefault("max_model_len", str(setup.context_length))
    config = {
        "model": model,
        "arguments": arguments,
        "adapters": parse_adapters(options.lora_modules),
    }
    return EmbeddedVllmEngine(
        "vllm",
        partial(VllmProcess, model, options, arguments.get("download_dir")),
        config,
        setup.tokenizer,
        context_length=setup.context_length,
        tcp=options.tcp,
    )


def create(setup: EngineSetup) -> TokenEngine:
    """Create the engine for a model of a running server, or for a model on this machine."""
    if setup.endpoint is None:
        return create_embedded(setup)
    if setup.remote is None:
        raise EngineSetupError(f"the model of the server at {setup.endpoint} is not known")
    if setup.endpoint.steps:
        length = setup.context_length
        return RemoteStepEngine(
            "vllm", setup.endpoint, setup.remote, setup.tokenizer, context_length=length
        )
    return VllmEngine(
        setup.endpoint,
        setup.remote,
        setup.tokenizer,
        context_length=setup.context_length,
        options=parse_options(setup.options, VllmOptions),
    )

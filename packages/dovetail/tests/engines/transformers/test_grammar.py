"""Grammars, seeds and tenants in the transformers engine, with a model of random weights.

The output of such a model is random, so any structure in it is the effect of a grammar.
"""

import asyncio
import ctypes
import json
from array import array
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from real_models import TOKENIZERS
from torch_environment import PYTHON, WINDOW, build, need_torch

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.child import grammar as module
from dovetail.engines.transformers.child.grammar import (
    GrammarCompiler,
    GrammarGuide,
    tokenizer_vocab_size,
)
from dovetail.engines.transformers.child.prefix_cache import PrefixCacheHook
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.models.loader import load_model
from dovetail_model import (
    ClientError,
    InvalidRequest,
    Sampling,
    ToolCallBlock,
    ToolChoice,
    Unsupported,
)
from dovetail_parsers import build_guided_grammar, parse

VOCABULARY, END, OTHER_END = 151_936, 151_645, 151_643
PAGE = 16
SHAPE = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "hourly": {"type": "boolean"},
    },
    "required": ["city", "days", "hourly"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [{"name": "forecast", "parameters": SHAPE}, {"name": "now", "parameters": NOTHING}]
SCHEMA = Constraint("json_schema", json.dumps(SHAPE))
T = TypeVar("T")
real_torch = [pytest.mark.transformers, pytest.mark.timeout(600)]


def need_tokenizer() -> Path:
    folder = TOKENIZERS / "qwen3"
    if not folder.is_dir():
        pytest.skip("no tokenizer qwen3 at hand: make tokenizers")
    return folder


# A single request, without torch.


class Words:
    """The part of an array of 32-bit integers that a guide uses."""

    def __init__(self) -> None:
        self._words = (ctypes.c_int32 * (VOCABULARY // 32))()
        self.nbytes = ctypes.sizeof(self._words)
        self.ctypes = SimpleNamespace(data=ctypes.addressof(self._words))

    def __getitem__(self, at: int) -> int:
        return self._words[at]

    def __setitem__(self, at: int | slice, value: int) -> None:
        places = range(len(self._words))[at] if isinstance(at, slice) else [at]
        for place in places:
            self._words[place] = value

    def any(self) -> bool:
        return any(self._words)

    def ids(self) -> set[int]:
        bits = int.from_bytes(bytes(self._words), "little")
        return {id for id in range(VOCABULARY) if bits >> id & 1} if bits else set()


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(need_tokenizer(), VOCABULARY, (END, OTHER_END))


def lark(text: str) -> Constraint:
    return Constraint("lark", text)


def allowed(guide: GrammarGuide, *generated: int) -> set[int]:
    words = Words()
    guide.fill(list(generated), words)
    return words.ids()


def test_guide_follows_generated_tokens(compiler: GrammarCompiler) -> None:
    guide = compiler.create_guide(lark('start: "a" "b"+'), {END})
    a, b, bb = 64, 65, 6066
    assert a in allowed(guide)
    assert END not in allowed(guide)
    assert allowed(guide, a) >= {b, bb}
    assert END not in allowed(guide, a)
    assert {b, END} <= allowed(guide, a, bb, b)


def test_complete_output_ends_only_by_the_stop_ids(compiler: GrammarCompiler) -> None:
    assert allowed(compiler.create_guide(lark('start: "a"'), {7, 31}), 64) == {7, 31}
    # Stop ids of the model that are not the request's would not end it.
    assert allowed(compiler.create_guide(lark('start: "a"*'), {7})) & {7, END, OTHER_END} == {7}
    ended = compiler.create_guide(lark('start: "a"'), ())
    assert allowed(ended, 64) == {END, OTHER_END}
    assert ended.eos_ids == [OTHER_END, END]


def test_token_outside_the_grammar_ends_the_output(compiler: GrammarCompiler) -> None:
    guide = compiler.create_guide(lark('start: "a" "b"'), {END})
    assert allowed(guide, 64, 64) == {END}
    assert allowed(guide, 64, 64, 70) == {END}  # no error is raised


def test_compiled_grammar_is_reused(compiler: GrammarCompiler) -> None:
    first, second = (compiler.create_guide(lark('start: "a" "b"'), {END}) for _ in range(2))
    assert allowed(first, 64) == {65}
    assert allowed(second) == {370}  # "ab": text that is determined by the grammar is one token


@pytest.mark.parametrize(
    "constraint",
    [
        lark("start: nothing"),
        lark("start: /("),
        lark(""),
        Constraint("json_schema", '{"type": "nothing"}'),
        Constraint("json_schema", "{"),
        Constraint("json_schema", "[]"),
    ],
)
def test_unusable_grammar_is_a_client_error(
    compiler: GrammarCompiler, constraint: Constraint
) -> None:
    with pytest.raises(InvalidRequest, match="the grammar cannot be used: "):
        compiler.create_guide(constraint, {END})


def test_other_syntaxes_are_rejected(compiler: GrammarCompiler) -> None:
    assert compiler.syntaxes == ("lark", "json_schema")
    with pytest.raises(Unsupported, match="gbnf"):
        compiler.create_guide(Constraint("gbnf", 'root ::= "a"'), {END})


def test_without_llguidance_there_are_no_constraints(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert compiler.syntaxes == ()
    with pytest.raises(Unsupported, match="llguidance"):
        compiler.create_guide(SCHEMA, {END})


def test_without_a_vocabulary_there_are_no_constraints(tmp_path: Path) -> None:
    assert GrammarCompiler(tmp_path, VOCABULARY, (END,)).syntaxes == ()


def test_unreadable_vocabulary_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Unsupported, match="cannot read the tokenizer"):
        GrammarCompiler(tmp_path, VOCABULARY, (END,)).create_guide(SCHEMA, {END})


def test_failing_matcher_ends_the_output(compiler: GrammarCompiler) -> None:
    guide = compiler.create_guide(lark('start: "a"'), {END})
    words = Words()
    words.nbytes -= 4  # llguidance rejects this size
    guide.fill([], words)
    assert words.ids() == {END}


def test_vocabulary_padding(tmp_path: Path) -> None:
    assert tokenizer_vocab_size(need_tokenizer(), VOCABULARY) == 151_669
    assert tokenizer_vocab_size(need_tokenizer(), 1000) == 1000
    assert tokenizer_vocab_size(tmp_path, VOCABULARY) == VOCABULARY


# The cache, without the library.


class Cache:
    """The hooked part of the library's cache in 5.17, with blocks of two tokens."""

    def __init__(self) -> None:
        self._block_manager = self
        self.known: set[int] = set()

    def compute_hash(self, parent_hash: int | None, tokens: list[int], group_id: int) -> int:
        return hash((parent_hash, tuple(tokens), group_id))

    def search_prefix_match(self, request_id: str, prompt_ids: list[int]) -> int:
        chain = [one for one in self._chain(prompt_ids) if one in self.known]
        return 2 * len(chain)

    def mark_shareable_blocks_as_complete(self, state: Any, num_complete_blocks: int) -> None:
        self.known.update(self._chain(state.initial_tokens))

    def _chain(self, ids: list[int]) -> Iterator[int]:
        parent = None
        for at in range(0, len(ids) - 1, 2):
            parent = self._block_manager.compute_hash(parent, ids[at : at + 2], group_id=0)
            yield parent


def read(cache: Any, name: str, ids: list[int]) -> int:
    """Return the cached tokens that a request finds, and add its own prompt to the cache."""
    found: int = cache.search_prefix_match(name, ids)
    state = SimpleNamespace(request_id=name, initial_tokens=ids, generated_tokens=[])
    cache.mark_shareable_blocks_as_complete(state, 1)
    return found


def test_blocks_are_shared_only_within_a_salt() -> None:
    cache: Any = Cache()
    prefixes = PrefixCacheHook(cache)
    ids = [1, 2, 3, 4, 5]
    found = [
        read(cache, prefixes.create_request_id(salt), ids)
        for salt in ("a", "b", None, "a", "b", None, "")
    ]
    assert found == [0, 0, 0, 4, 4, 4, 4]


def test_cached_tokens_are_those_not_computed() -> None:
    cache: Any = Cache()
    prefixes = PrefixCacheHook(cache)
    first, second = prefixes.create_request_id(None), prefixes.create_request_id(None)
    assert prefixes.is_supported
    assert read(cache, first, [1, 2, 3, 4]) == 0
    assert prefixes.cached_tokens(first) == 0
    assert read(cache, second, [1, 2, 3, 4]) == 4
    assert prefixes.cached_tokens(second) == 3  # at least one token is computed
    assert read(cache, first, [1, 2, 3, 4, 9, 9]) == 4  # restarted
    assert prefixes.cached_tokens(first) == 0
    prefixes.forget(second)
    assert read(cache, second, [1, 2]) == 2
    assert prefixes.cached_tokens(second) == 0


def test_salted_requests_share_nothing_if_hashes_cannot_be_salted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PrefixCacheHook, "_hook_hashes", lambda self, cache: False)
    cache: Any = Cache()
    prefixes = PrefixCacheHook(cache)
    found = [
        read(cache, prefixes.create_request_id(salt), [1, 2, 3])
        for salt in ("a", "a", None, "a", None)
    ]
    assert found == [0, 0, 0, 0, 2]


# The engine, with a model.


@dataclass
class Bench:
    """The engine, and its event loop."""

    runner: asyncio.Runner
    engine: TransformersEngine
    folder: Path

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(scene)

    def generate(self, *requests: EngineRequest) -> list[list[TokenDelta]]:
        async def scene() -> list[list[TokenDelta]]:
            return await asyncio.gather(*(self._generate(one) for one in requests))

        return self.run(scene())

    def ids(self, *requests: EngineRequest) -> list[list[int]]:
        return [[id for delta in deltas for id in delta.ids] for deltas in self.generate(*requests)]

    async def _generate(self, request: EngineRequest) -> list[TokenDelta]:
        return [delta async for delta in iter_deltas(self.engine, request)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need_torch()
    folder = tmp_path_factory.mktemp("tiny")
    build(folder, [])
    options = TransformersOptions(
        python=PYTHON, threads=1, device_map="cpu", page_size=PAGE, cache_tokens=2 * WINDOW
    )
    engine = TransformersEngine(folder, options=options)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Bench(runner, engine, folder)
        finally:
            runner.run(engine.stop())


def make_request(
    start: int = 5, max_tokens: int = 80, length: int = 20, **fields: Any
) -> EngineRequest:
    prompt = array("I", [(at * 7919 + start) % 150_000 for at in range(length)])
    fields = {"stop_ids": frozenset({END}), "sampling": Sampling(seed=start), **fields}
    return EngineRequest("r", prompt, max_tokens, **fields)


def call_grammar(bench: Bench) -> tuple[Constraint, Any]:
    model = load_model(bench.folder, tool_parser="qwen3_coder", reasoning_parser="none")
    written = build_guided_grammar(
        "qwen3_coder",
        None,
        tools=TOOLS,
        choice=ToolChoice("required", parallel=False),
        in_reasoning=False,
        syntax="lark",
        tokens=model.tokenizer.controls,
    )
    assert written is not None
    return lark(written.text), model.tokenizer


def check_shape(value: Any) -> None:
    assert set(value) == {"city", "days", "hourly"}
    assert value["city"] in ("Bern", "Rome")
    assert value["days"] in range(1, 15)
    assert value["hourly"] in (True, False)


@pytest.mark.long
class TestEngine:
    pytestmark = real_torch

    def test_supported_syntaxes(self, bench: Bench) -> None:
        assert bench.engine.capabilities.constraints == ("lark", "json_schema")

    @pytest.mark.parametrize("temperature", [0.0, 1.0, 5.0])
    def test_json_matches_its_schema(self, bench: Bench, temperature: float) -> None:
        _, tokenizer = call_grammar(bench)
        sampling = Sampling(temperature=temperature, seed=1)
        for start in range(3):
            (deltas,) = bench.generate(make_request(start, sampling=sampling, constraint=SCHEMA))
            ids = [id for delta in deltas for id in delta.ids]
            assert deltas[-1].finish == "stop"
            assert ids[-1] == END
            check_shape(json.loads(tokenizer.decode(ids[:-1])))

    def test_constrained_call_can_be_parsed(self, bench: Bench) -> None:
        grammar, tokenizer = call_grammar(bench)
        names = set()
        for start in range(4):
            (deltas,) = bench.generate(make_request(start, 200, constraint=grammar))
            ids = [id for delta in deltas for id in delta.ids]
            assert deltas[-1].finish == "stop"
            message = parse(tokenizer.decode(ids[:-1]), tool_parser="qwen3_coder", tools=TOOLS)
            (call,) = message.blocks
            assert isinstance(call, ToolCallBlock)
            names.add(call.name)
            if call.name == "forecast":
                check_shape(json.loads(call.arguments))
        assert names <= {"forecast", "now"}

    def test_constrained_and_free_requests_in_one_batch(self, bench: Bench) -> None:
        grammar, _ = call_grammar(bench)
        free = make_request(3, 40, stop_ids=frozenset())
        together = [
            make_request(1, constraint=SCHEMA),
            free,
            make_request(2, 200, constraint=grammar),
        ]
        alone = [bench.ids(one)[0] for one in together]
        assert bench.ids(*together) == alone
        assert len(alone[1]) == 40

    def test_request_without_stop_ids_uses_the_models_own(self, bench: Bench) -> None:
        for stop_ids in (frozenset[int](), frozenset({1 << 20})):
            (deltas,) = bench.generate(make_request(4, constraint=SCHEMA, stop_ids=stop_ids))
            assert deltas[-1].finish == "stop"
            assert deltas[-1].ids[-1] == END

    def test_unusable_grammar_is_rejected_immediately(self, bench: Bench) -> None:
        with pytest.raises(ClientError, match="the grammar cannot be used"):
            bench.generate(make_request(constraint=lark("start: nothing")))
        with pytest.raises(ClientError, match="gbnf"):
            bench.generate(make_request(constraint=Constraint("gbnf", 'root ::= "a"')))

    def test_seed_is_independent_of_the_batch(self, bench: Bench) -> None:
        mine = make_request(1, 30, sampling=Sampling(temperature=1.5, seed=9))
        others = [
            make_request(2, 40, sampling=Sampling(temperature=1.0, top_p=0.9)),
            make_request(3, 10, sampling=Sampling(temperature=0.7, top_k=20, min_p=0.05)),
            make_request(4, 35, sampling=Sampling(presence_penalty=1.0, repetition_penalty=1.1)),
        ]
        (alone,) = bench.ids(mine)
        assert bench.ids(others[0], mine, *others[1:])[1] == alone
        assert (
            bench.ids(make_request(1, 30, sampling=Sampling(temperature=1.5, seed=10)))[0] != alone
        )

    def test_outputs_differ_without_a_seed(self, bench: Bench) -> None:
        wild = make_request(1, 30, sampling=Sampling(temperature=1.5))
        one, other = bench.ids(wild, wild)
        assert one != other

    def test_penalties_reduce_repetition(self, bench: Bench) -> None:
        (plain,) = bench.ids(
            make_request(7, 200, sampling=Sampling(temperature=0.0), stop_ids=frozenset())
        )
        assert len(set(plain)) < 200
        harsh = Sampling(temperature=0.0, presence_penalty=1e6)
        (varied,) = bench.ids(make_request(7, 200, sampling=harsh, stop_ids=frozenset()))
        assert len(set(varied)) == 200

    def test_tenants_do_not_share_cached_prefixes(self, bench: Bench) -> None:
        def cached(salt: str | None) -> int | None:
            (deltas,) = bench.generate(make_request(77, 1, 5 * PAGE, cache_salt=salt))
            return deltas[0].cached

        found = [cached(salt) for salt in ("a", "b", None, "a", "b", None)]
        assert found[:3] == [0, 0, 0]
        assert found[3:] == [found[3]] * 3
        assert found[3] in (4 * PAGE, 5 * PAGE - 1)  # at least one token is computed again

    def test_output_does_not_depend_on_the_cache(self, bench: Bench) -> None:
        sampling = Sampling(temperature=0.0)
        outputs = [
            bench.ids(make_request(78, 20, 4 * PAGE, cache_salt=salt, sampling=sampling))[0]
            for salt in ("a", "a", "b", None)
        ]
        assert outputs == [outputs[0]] * 4

"""Optional sampling parameters: what each engine receives, and what it rejects."""

import json
from array import array
from typing import Any

import pytest

from dovetail.engines.completion_server.request import CompletionRequest, to_engine_request
from dovetail.engines.completions.client import encode_request as encode_completion
from dovetail.engines.engine import EngineCapabilities, EngineRequest
from dovetail.engines.llamacpp.request import encode_request as encode_llamacpp
from dovetail.engines.sampling import check_sampling
from dovetail.engines.sglang.request import encode_request as encode_sglang
from dovetail.engines.token_ids import PromptEncoder
from dovetail.engines.transformers.child.grammar import MinTokensMask
from dovetail_model import Sampling, Unsupported

SAMPLING = Sampling(min_tokens=3, ignore_eos=True, logit_bias=((7, -100.0), (8, 1.5)))


def request(sampling: Sampling = SAMPLING) -> EngineRequest:
    return EngineRequest("r", array("I", [1, 2]), 10, sampling)


def test_vllm() -> None:
    body = json.loads(encode_completion(request(), PromptEncoder(), "m", with_priority=False))
    assert (body["min_tokens"], body["ignore_eos"]) == (3, True)
    assert body["logit_bias"] == {"7": -100.0, "8": 1.5}
    plain = encode_completion(request(Sampling()), PromptEncoder(), "m", with_priority=False)
    assert not {"min_tokens", "ignore_eos", "logit_bias"} & json.loads(plain).keys()


def test_sglang() -> None:
    params = json.loads(encode_sglang(request(), PromptEncoder(), "rid", None))["sampling_params"]
    assert (params["min_new_tokens"], params["ignore_eos"]) == (3, True)
    assert params["logit_bias"] == {"7": -100.0, "8": 1.5}


def test_llamacpp() -> None:
    body = json.loads(encode_llamacpp(request(), 0))
    assert (body["ignore_eos"], body["logit_bias"]) == (True, [[7, -100.0], [8, 1.5]])


def test_servers_of_this_package_decode_what_their_client_sends() -> None:
    sent = json.loads(encode_completion(request(), PromptEncoder(), "m", with_priority=False))
    fields = {name: sent[name] for name in ("min_tokens", "ignore_eos", "logit_bias")}
    decoded = to_engine_request(CompletionRequest(**fields), array("I", [1]), [5], 10)
    assert (decoded.sampling.min_tokens, decoded.sampling.ignore_eos) == (3, True)
    assert decoded.sampling.logit_bias == SAMPLING.logit_bias
    assert decoded.stop_ids == frozenset()


CASES: list[tuple[Sampling, str]] = [
    (Sampling(min_tokens=1), "min_tokens"),
    (Sampling(ignore_eos=True), "ignore_eos"),
    (Sampling(logit_bias=((1, 1.0),)), "logit_bias"),
    (Sampling(logprobs=0), "logprobs"),
]


@pytest.mark.parametrize(("sampling", "field"), CASES, ids=lambda one: str(one)[:12])
def test_unsupported_parameters_are_rejected_with_their_field(
    sampling: Sampling, field: Any
) -> None:
    with pytest.raises(Unsupported, match="engine 'e'") as caught:
        check_sampling(sampling, EngineCapabilities(), "e")
    assert caught.value.param == field
    supported = EngineCapabilities(sampling=frozenset((field,)), logprobs=True)
    check_sampling(sampling, supported, "e")


class Words(list[int]):
    """32-bit words; a value assigned to a slice fills it, as in numpy."""

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, [value] * len(self) if isinstance(at, slice) else value)


def test_mask_forbids_the_end_before_the_minimum() -> None:
    mask, words = MinTokensMask([3, 31, 40], 2), Words([0, 0])
    for length, allowed in ((0, False), (1, False), (2, True)):
        mask.fill([1] * length, words)
        bits = [bool(words[id // 32] >> id % 32 & 1) for id in (3, 31, 40, 4, 63)]
        assert bits == [allowed, allowed, allowed, True, True]

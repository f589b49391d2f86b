"""Requests and frames, checked against SGLang's own definition of its protocol.

The definition is a module of the package `sglang`, which has no build for CPUs. That module imports
only msgspec. tools/fetch_dynamo.py installs it together with Dynamo's mocker.
"""

import subprocess
from typing import Any

import msgspec
import pytest
from dynamo_environment import PYTHON
from sglang_fixture import Json, frames, make_request
from sglang_recording import REQUESTS

from dovetail.engines.engine import Constraint, EngineRequest
from dovetail.engines.sglang.request import CONSTRAINT_FIELDS, encode_request
from dovetail.engines.token_ids import PromptEncoder
from dovetail_model import Sampling

pytestmark = pytest.mark.sglang

#: Input: lines with the name of a type and a value. Output: one line per value with its error.
JUDGE = """
import importlib.util, json, sys, sysconfig
path = sysconfig.get_paths()["purelib"] + "/sglang/api/v1/api_types.py"
spec = importlib.util.spec_from_file_location("api_types", path)
types = sys.modules["api_types"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(types)
for line in sys.stdin:
    kind, value = json.loads(line)
    try:
        getattr(types, kind).from_json_value(value)
    except types.JsonContractError as fault:
        print(fault)
    else:
        print("")
"""
EVERYTHING = Sampling(
    temperature=0.5,
    top_p=0.5,
    top_k=0,
    min_p=0.1,
    seed=2**70,
    presence_penalty=1,
    frequency_penalty=1,
    repetition_penalty=1.0,
    logprobs=3,
)


def validation_errors(kind: str, values: list[Any]) -> list[str]:
    """Return SGLang's validation error for each value."""
    if PYTHON is None:
        pytest.skip("no SGLang: DOVETAIL_DYNAMO_PYTHON names no interpreter (make test-sglang)")
    lines = b"".join(msgspec.json.encode([kind, value]) + b"\n" for value in values)
    done = subprocess.run([PYTHON, "-c", JUDGE], input=lines, capture_output=True, timeout=60)
    if b"FileNotFoundError" in done.stderr:
        pytest.skip("the package sglang is not there: tools/fetch_dynamo.py could not get it")
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def encoded(request: EngineRequest) -> Json:
    body: Json = msgspec.json.decode(encode_request(request, PromptEncoder(), "rid", "lower"))
    return body


def test_requests() -> None:
    requests = [
        *REQUESTS.values(),
        make_request(sampling=EVERYTHING, session="s", cache_salt="k", priority=4),
    ]
    requests += [make_request(constraint=Constraint(syntax, "x")) for syntax in CONSTRAINT_FIELDS]
    assert validation_errors("GenerateRequest", [encoded(one) for one in requests]) == [""] * len(
        requests
    )


def test_unknown_fields_are_detected() -> None:
    (fault,) = validation_errors("GenerateRequest", [{"sampling_params": {"speed": 1}}])
    assert "unknown field `speed`" in fault


@pytest.mark.parametrize("repeats", [True, False])
def test_fake_server_follows_the_protocol(repeats: bool) -> None:
    sent_frames = list(frames([[1], [2, 3]], {"type": "stop", "matched": 3}, repeats=repeats))
    sent_frames += frames([[1]], {"type": "length", "length": 1}, repeats=repeats)
    sent_frames += frames(
        [[]], {"type": "abort", "message": "x", "status_code": 400}, repeats=repeats
    )
    assert validation_errors("GenerateResponse", sent_frames) == [""] * len(sent_frames)

"""Options of the embedded engine as vLLM's own parser reads them."""

import json
import os
import subprocess
from typing import Any

import pytest
from step_fixture import import_path
from vllm_environment import ENVIRONMENT, PYTHON, REAL

pytestmark = REAL

#: Prints the values of the fields, or the error, for each of several sets of options.
_PARSE = """
import json, sys
from dovetail.engines.vllm.child.loader import InvalidArgument, parse_engine_args
results = []
for options, fields in json.loads(sys.argv[1]):
    try:
        parsed = parse_engine_args(sys.argv[2], options)
        results.append([repr(eval(f"parsed.{name}")) for name in fields])
    except InvalidArgument as error:
        results.append(str(error))
print(json.dumps(results))
"""
#: Options, and the resulting fields, or a part of the error.
CASES: dict[str, tuple[dict[str, str], dict[str, str] | str]] = {
    "default": ({}, {"scheduling_policy": "'priority'"}),
    "number": ({"max_model_len": "1k"}, {"max_model_len": "1000"}),
    "on": ({"enforce_eager": "True"}, {"enforce_eager": "True"}),
    "off": ({"enable_prefix_caching": "false"}, {"enable_prefix_caching": "False"}),
    "only on": ({"disable_log_stats": "false"}, {"disable_log_stats": "False"}),
    "object": (
        {"kv_events_config": '{"enable_kv_cache_events": true, "topic": "a"}'},
        {"kv_events_config.enable_kv_cache_events": "True", "kv_events_config.topic": "'a'"},
    ),
    "field": ({"kv_events_config.topic": "b"}, {"kv_events_config.topic": "'b'"}),
    "list": (
        {"middleware": "[]", "allowed_media_domains": '["a", "b"]'},
        "no engine argument 'middleware'",
    ),
    "domains": (
        {"allowed_media_domains": '["a", "b"]'},
        {"allowed_media_domains": "['a', 'b']"},
    ),
    "invalid switch": ({"enforce_eager": "ture"}, "enforce_eager must be true or false"),
    "invalid list": ({"allowed_media_domains": "[a"}, "must be a JSON list"),
    "invalid number": ({"max_num_seqs": "many"}, "--max-num-seqs"),
    "abbreviation": ({"max_model": "1"}, "no engine argument 'max_model'"),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    fields = [
        (options, list(expected) if isinstance(expected, dict) else [])
        for options, expected in CASES.values()
    ]
    model = str(tmp_path_factory.mktemp("model"))
    done = subprocess.run(
        [os.environ[PYTHON], "-c", _PARSE, json.dumps(fields), model],
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": import_path()},
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_arguments(results: dict[str, Any], name: str) -> None:
    expected = CASES[name][1]
    if isinstance(expected, str):
        assert expected in results[name]
    else:
        assert results[name] == list(expected.values())

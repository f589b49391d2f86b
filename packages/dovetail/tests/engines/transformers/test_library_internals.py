"""The internals of transformers' continuous batching that the engine depends on.

The modules of `dovetail.engines.transformers.child` replace parts of the library's manager, cache
and scheduler, which are not a stable API. The table lists each part. If one is missing, adapt the
module that is listed with it; `|` separates the names of a part in different library versions.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from step_fixture import import_path
from torch_environment import PYTHON, need_torch

pytestmark = pytest.mark.transformers

CHECK = Path(__file__).parents[2] / "support" / "batching_internals.py"
#: By object and module: methods with the parameters that are passed to them, else attributes.
USED: dict[str, dict[str, dict[str, str]]] = {
    "manager": {
        "batch_manager": {
            "_create_batch_processor": "",
            "batch_processor": "",
            "continuous_batching_config": "",
            "logit_processor": "",
            "model": "",
            "warmed_up": "",
        },
        "engine": {
            "add_request": "input_ids request_id max_new_tokens streaming eos_token_id",
            "cancel_request": "request_id",
            "get_result": "timeout",
            "input_queue": "",
            "is_running": "",
            "output_router": "",
            "register_result_handler": "request_id",
            "start": "",
            "stop": "block hard_stop",
        },
    },
    "processor": {
        "batch_manager": {
            "cache": "",
            "inputs_and_outputs": "",
            "model_runner": "",
            "scheduler": "",
        },
        "delivery": {"prepare_next_batch": ""},
    },
    "cache": {
        "attention": {
            "cache_allocators|group_cache_managers": "",
            "layer_to_allocator|layer_index_to_group_indices": "",
        },
        "batch_manager": {"max_batch_tokens": "", "num_blocks": ""},
        # Up to 5.18, `prefix_cache` hooks the block manager instead.
        "page_retention": {
            "can_store_request_tokens|_block_manager": "",
            "compute_free_capacity|_block_manager": "",
        },
        "prefix_cache": {
            "mark_complete_blocks|mark_shareable_blocks_as_complete": "state",
            "search_prefix_match": "request_id prompt_ids",
        },
    },
    "allocator": {
        "attention": {
            "_kv_token_views|key_cache": "",
            "index|write_trash_index": "",
            "tokens_per_page|block_size": "",
            "write_trash_index": "",
        },
    },
    "scheduler": {
        "batch_manager": {"block_new_requests": "", "clear_cancelled_requests": ""},
        "engine": {"active_requests": "", "waiting_requests": ""},
    },
    "batch": {
        "attention": {"block_table": "", "prepare_batch_tensors": ""},
        "batch_sampler": {"_get_graph_key": ""},
        "delivery": {
            "compute_stream": "",
            "prepare_batch_update": "",
            "retrieve_device_outputs": "",
        },
    },
    "runner": {
        "batch_manager": {"run_one_warmup": "model", "use_cuda_graph_decode": ""},
    },
    "router": {
        "delivery": {"deliver": "output", "deliver_batch": "outputs"},
        "engine": {"result_handlers": ""},
    },
    "config": {
        "batch_manager": {
            "allow_block_sharing": "",
            "max_blocks_per_request": "",
            "max_requests_per_batch": "",
            "use_async_batching": "",
            "use_cuda_graph": "",
        },
    },
    "state": {
        "batch_sampler": {"logit_processor_kwargs": ""},
        "prefix_cache": {"request_id": ""},
        "sampling_params": {
            "_true_initial_tokens": "",
            "generated_tokens": "",
            "initial_tokens": "",
        },
    },
    "future": {"batch_sampler": {"has_new_token": "", "state": ""}},
    "output": {"delivery": {"error": "", "generated_tokens": "", "is_finished": ""}},
    "attention": {"loader": {"register": ""}},
}


def test_replaced_parts_exist() -> None:
    need_torch()
    wanted = {
        place: [name for names in modules.values() for one in names for name in one.split("|")]
        for place, modules in USED.items()
    }
    done = subprocess.run(
        [PYTHON, str(CHECK)],
        input=json.dumps(wanted),
        env={**os.environ, "PYTHONPATH": import_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    problems = list(_problems(report["found"]))
    assert not problems, f"transformers {report['version']}: " + "; ".join(problems)


def _problems(found: dict[str, dict[str, str | None]]) -> Iterator[str]:
    for place, modules in USED.items():
        for module, names in modules.items():
            for name, parameters in names.items():
                known = [found[place][one] for one in name.split("|") if found[place][one]]
                if not known:
                    yield f"{place}.{name} is missing, which child/{module}.py uses"
                elif any(one not in str(known[0]) for one in parameters.split()):
                    yield f"{place}.{name} takes {known[0]}, child/{module}.py gives {parameters}"

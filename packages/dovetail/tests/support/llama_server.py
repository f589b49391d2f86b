"""llama.cpp's own server as an upstream: the real one, from xllamacpp, on a loopback port."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llamacpp_environment import WEIGHTS

from dovetail.engines.llamacpp.process import CHILD_SCRIPT

#: ChatML that renders the reasoning of earlier turns, and calls in Hermes syntax.
THINKING_CHATML = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@contextmanager
def llama_server(**more: Any) -> Iterator[str]:
    """Run a server with SmolLM2 and yield its address."""
    params = {
        "n_ctx": 1024,
        "n_parallel": 1,
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "offline": True,
        "verbosity": 1,
        "ui": False,
        "use_jinja": True,
        **more,
    }
    config = {"model": str(WEIGHTS), "params": params, "threads": 1}
    child = subprocess.Popen(
        [sys.executable, "-P", str(CHILD_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(config) + "\n")
        child.stdin.flush()
        response = json.loads(child.stdout.readline())
        try:
            yield response["address"]
        finally:
            child.stdin.close()
            child.wait(30)

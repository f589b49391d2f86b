"""Models with and without fused operations, for an interpreter that has torch and triton.

Run as a script. Output: a line of JSON with, for each model, the fused operations and the change of
its logits.
"""

import json
import sys
from importlib import import_module
from typing import Any

import torch

from dovetail.engines.transformers.child.fusion import fuse
from dovetail.engines.transformers.child.loader import BLOCKED_MODULES

FAMILIES = ("Qwen3", "Llama", "Gemma2", "Glm4")
SHAPE = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def trial(family: str) -> dict[str, Any]:
    transformers = import_module("transformers")
    config = getattr(transformers, f"{family}Config")(**SHAPE)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        for parameter in model.parameters():
            # the weights of norms, which are initialized to the same value
            if parameter.dim() == 1:
                parameter.uniform_(0.2, 0.6)
        before = model(ids).logits
        fused = fuse(model)
        after = model(ids).logits
    return {**fused, "error": float((after - before).norm() / before.norm())}


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(BLOCKED_MODULES))  # type: ignore[arg-type]
    torch.manual_seed(0)
    print(json.dumps({family: trial(family) for family in FAMILIES}))

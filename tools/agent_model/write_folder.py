"""Write the embedded model and its adapter as folders, for the engines transformers and vLLM.

The weights are those that llama.cpp serves, dequantized to 16 bits. `OUT/model` is in the layout of
the hub, `OUT/adapter` in that of PEFT. Requires numpy and Dovetail's packages; torch is not needed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf_files import GgufReader, write_safetensors
from transformers_files import convert_tensor, model_config, peft_config

from dovetail_tokenizers import gguf_tokenizer_json

MODELS = Path(__file__).parents[2] / "packages" / "dovetail" / "src" / "dovetail" / "models"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file of SmolLM2")
    parser.add_argument("--adapter", type=Path, default=MODELS / "adapters" / "smollm2-agent.gguf")
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    options = parser.parse_args()
    reader = GgufReader(options.model)
    write_model(options.out / "model", reader)
    write_adapter_folder(options.out / "adapter", GgufReader(options.adapter), reader)
    print(f"wrote {options.out / 'model'} and {options.out / 'adapter'}")


def write_model(folder: Path, reader: GgufReader) -> None:
    """Write config, weights, tokenizer and the template that `dovetail serve smollm2` uses."""
    folder.mkdir(parents=True)
    meta = reader.metadata
    config = model_config(meta, "float16")
    _write_json(folder / "config.json", config)
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    _write_json(folder / "generation_config.json", ends)
    write_safetensors(folder / "model.safetensors", dict(_convert(reader, reader)))
    _write_json(folder / "tokenizer.json", gguf_tokenizer_json(meta))
    tokens = meta["tokenizer.ggml.tokens"]
    specials = {name.removesuffix("_id"): tokens[id] for name, id in ends.items()}
    classes = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    _write_json(folder / "tokenizer_config.json", {**specials, **classes})
    template = MODELS / "templates" / "smollm2.jinja"
    (folder / "chat_template.jinja").write_text(template.read_text())


def write_adapter_folder(folder: Path, adapter: GgufReader, base: GgufReader) -> None:
    """Write an adapter for PEFT. Its scale is `lora_alpha / r`, as in llama.cpp."""
    folder.mkdir(parents=True)
    ranks = {info.shape[0] for name, info in adapter.tensors.items() if name.endswith("lora_a")}
    if len(ranks) != 1:
        raise ValueError(f"all layers of the adapter must have the same rank, got {sorted(ranks)}")
    config = peft_config(ranks.pop(), adapter.metadata["adapter.lora.alpha"])
    _write_json(folder / "adapter_config.json", config)
    write_safetensors(folder / "adapter_model.safetensors", dict(_convert(adapter, base)))


def _convert(reader: GgufReader, base: GgufReader) -> Iterator[tuple[str, np.ndarray]]:
    heads = base.metadata["llama.attention.head_count"]
    kv_heads = base.metadata["llama.attention.head_count_kv"]
    for name in reader.tensors:
        converted, values = convert_tensor(name, reader.read(name), heads, kv_heads)
        yield converted, values.astype(np.float16)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()

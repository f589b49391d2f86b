"""Every parser name that users know from Dynamo, vLLM or SGLang maps to a family."""

import pytest

from dovetail_parsers import families, parse, resolve_family
from dovetail_parsers.registry import load_grammar, reasoning_family, tool_family

TOOL_NAMES = [
    "hermes",
    "qwen25",
    "nemotron_deci",
    "nemotron_nano",
    "llama3_json",
    "mistral",
    "phi4",
    "pythonic",
    "harmony",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "qwen3_coder",
    "jamba",
    "minimax_m2",
    "minimax_m3",
    "minimax_m3_nom",
    "glm47",
    "kimi_k2",
    "kimi_k3",
    "gemma4",
    "inkling",
    "muse_glimmer",
    "default",
    "apertus",
    "cohere_command3",
    "cohere_command4",
    "deepseek_v31",
    "deepseek_v32",
    "dots",
    "ernie45",
    "functiongemma",
    "gigachat3",
    "glm45",
    "granite",
    "granite-20b-fc",
    "granite4",
    "hunyuan_a13b",
    "hy_v3",
    "internlm",
    "lfm2",
    "ling3",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minicpm5",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "poolside_v1",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "xlam",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "deepseekv4",
    "glm",
    "gpt-oss",
    "hunyuan",
    "interns1",
    "llama3",
    "minimax-m2",
    "minimax-m3",
    "muse",
    "qwen",
    "trinity",
    "apertus2509",
]

REASONING_NAMES = [
    "basic",
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "deepseek_v4",
    "gemma4",
    "glm45",
    "gpt_oss",
    "granite",
    "inkling",
    "kimi",
    "kimi_k25",
    "kimi_k3",
    "minimax_append_think",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "muse_glimmer",
    "nemotron3",
    "nemotron_deci",
    "nemotron_nano",
    "nemotron_v3",
    "qwen3",
    "step3",
    "cohere_command3",
    "cohere_command4",
    "ernie45",
    "glm47",
    "holo2",
    "hunyuan_a13b",
    "hunyuan",
    "hy_v3",
    "kimi_k2",
    "ling3",
    "mimo",
    "olmo3",
    "openai_gptoss",
    "poolside_v1",
    "seed_oss",
    "step3p5",
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "dots",
    "gpt-oss",
    "interns1",
    "minimax",
    "minimax-append-think",
    "qwen3-thinking",
    "nemotron_3",
    "apertus2509",
]

STARTS_INSIDE = [
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v3_1",
    "deepseek_v3_2",
    "step3",
    "kimi_k25",
    "mistral",
    "minimax_m2",
    "minimax_append_think",
    "nemotron_nano",
    "nemotron3",
    "nemotron_v3",
]

PAIRS = [
    ("harmony", "gpt_oss"),
    ("deepseek_v4", "deepseek_v4"),
    ("glm47", "glm45"),
    ("kimi_k2", "kimi_k25"),
    ("gemma4", "gemma4"),
    ("qwen3_coder", "qwen3"),
    ("qwen3_coder", "nemotron_deci"),
    ("minimax_m2", "minimax_m2"),
    ("minimax_m3", "minimax_m3"),
]

MODELS = [
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3_coder", None),
    ("Qwen/Qwen3.5-4B", "qwen3_coder", "qwen3"),
    ("Qwen/Qwen3-0.6B", "hermes", "qwen3"),
    ("Qwen/Qwen2.5-7B-Instruct", "hermes", None),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", "nemotron_v3"),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B", "qwen3_coder", "nemotron_deci"),
    ("zai-org/GLM-4.7", "glm47", "glm45"),
    ("moonshotai/Kimi-K2.5", "kimi_k2", "kimi_k25"),
    ("moonshotai/Kimi-K3", "kimi_k3", "kimi_k3"),
    ("openai/gpt-oss-120b", "harmony", "gpt_oss"),
    ("openai/openai/gpt-oss-20b", "harmony", "gpt_oss"),
    ("MiniMaxAI/MiniMax-M2", "minimax_m2", "minimax_m2"),
    ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3_1", "deepseek_v3_1"),
    ("deepseek-ai/DeepSeek-V3-0324", "deepseek_v3", None),
    ("deepseek-ai/DeepSeek-V4-Flash", "deepseek_v4", "deepseek_v4"),
    ("google/gemma-4-31B-it", "gemma4", "gemma4"),
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral", None),
    ("mistralai/Magistral-Small-2509", "mistral", "mistral"),
    ("meta-llama/Llama-3.1-8B-Instruct", "llama3_json", None),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama4_pythonic", None),
    ("NousResearch/Hermes-3-Llama-3.1-8B", "hermes", None),
    ("Team-ACE/ToolACE-2-Llama-3.1-8B", "pythonic", None),
    ("HuggingFaceTB/SmolLM2-135M-Instruct", "hermes", None),
]


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_tool_name(name: str) -> None:
    assert tool_family(name).tools is not None
    assert resolve_family(name) is not None


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_reasoning_name(name: str) -> None:
    family = reasoning_family(name)
    assert family.reasoning is not None or family.unified is not None
    assert resolve_family(name) is not None


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_default_start_of_the_output(name: str) -> None:
    first = parse("hello", reasoning_parser=name).blocks[0]
    inside = {n.replace("-", "_") for n in STARTS_INSIDE} | {
        "minimax",
        "nemotron_3",
        "qwen3_thinking",
    }
    assert first.type == ("reasoning" if name.replace("-", "_") in inside else "text")


@pytest.mark.parametrize(("tool", "reasoning"), PAIRS)
def test_pair_of_parsers_has_one_grammar(tool: str, reasoning: str) -> None:
    table = load_grammar(tool, reasoning)
    assert "reasoning" in table.states


@pytest.mark.parametrize(("model", "tool", "reasoning"), MODELS)
def test_model_id(model: str, tool: str, reasoning: str | None) -> None:
    family = resolve_family(model)
    assert family is not None
    assert (family.tool_parser, family.reasoning_parser) == (tool, reasoning)


def test_every_name_maps_to_one_family() -> None:
    for kind in ("tool_names", "reasoning_names"):
        names = [name for family in families() for name in getattr(family, kind)]
        assert len(names) == len(set(names))


def test_every_pairing_exists() -> None:
    for family in families():
        for name in [family.pairs_with, *family.models.values()]:
            if name is not None:
                reasoning_family(name)


def test_unknown_name_is_rejected_with_suggestions() -> None:
    with pytest.raises(ValueError, match="Did you mean 'hermes'"):
        parse("", tool_parser="hermez")
    assert resolve_family("no-such-family") is None


def test_incompatible_pair_is_rejected_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="Use 'harmony' with 'gpt_oss'"):
        parse("", tool_parser="harmony", reasoning_parser="qwen3")
    with pytest.raises(ValueError, match="Use 'harmony' with 'gpt_oss'"):
        parse("", tool_parser="hermes", reasoning_parser="gpt_oss")


def test_template_without_reasoning_gets_no_reasoning_parser() -> None:
    plain = resolve_family("{{ '[TOOL_CALLS]' }}")
    thinking = resolve_family("{{ '[TOOL_CALLS]' }}{{ '[THINK]' }}{{ '[/THINK]' }}")
    assert plain is not None
    assert (plain.tool_parser, plain.reasoning_parser) == ("mistral", None)
    assert thinking is not None
    assert thinking.reasoning_parser == "mistral"

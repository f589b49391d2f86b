"""Pairs of vLLM's parsers and our families that parse the same format.

Not included: harmony (its parser needs a vocabulary that cannot be downloaded), cohere_command3
(its parser needs a library that vLLM does not install), phi4 (its parser emits nothing while
streaming), and formats that vLLM does not support. Without a reasoning parser: olmo3 and
hunyuan_a13b (they need the tokens of a real vocabulary) and step3 (it expects the opening marker in
the prompt).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """One of our families and the vLLM parsers of the same format."""

    family: str
    tool: str
    reasoning: str = ""
    tokens: str = ""  # markers that are one token, separated by spaces


_THINK = "<think> </think> "
_TOOL_CALL = "<tool_call> </tool_call> "
_ARG = "<arg_key> </arg_key> <arg_value> </arg_value> "
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁sep｜> "
    "<｜tool▁call▁begin｜> <｜tool▁call▁end｜> "
)
_INKLING = (
    "<|message_model|> <|content_invoke_tool_json|> <|content_thinking|> <|content_text|> "
    "<|content_model_end_sampling|> <|end_message|>"
)
_KIMI = (
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> "
    "<|tool_call_argument_begin|> <|tool_call_end|> "
)
_STEP = (
    "<｜tool_calls_begin｜> <｜tool_calls_end｜> <｜tool_sep｜> "
    "<｜tool_call_begin｜> <｜tool_call_end｜> "
)

PAIRS = (
    Pair("apertus", "apertus", "", "<|tools_prefix|> <|tools_suffix|>"),
    Pair("deepseek_v3", "deepseek_v3", "deepseek_r1", _THINK + _DEEPSEEK),
    Pair("deepseek_v3_1", "deepseek_v31", "deepseek_v3", _THINK + _DEEPSEEK),
    Pair("deepseek_v3_2", "deepseek_v32", "", _THINK + "｜DSML｜"),
    Pair("deepseek_v4", "deepseek_v4", "deepseek_v4", _THINK + "｜DSML｜"),
    Pair("dots", "dots", "", _THINK),
    Pair("ernie45", "ernie45", "ernie45", _THINK + _TOOL_CALL + "<response> </response>"),
    Pair("functiongemma", "functiongemma", "", "<start_function_call> <end_function_call>"),
    Pair("gemma4", "gemma4", "gemma4", '<|tool_call> <tool_call|> <|"|> <|channel> <channel|>'),
    Pair("gigachat3", "gigachat3", "", "<|function_call|>"),
    Pair("glm47", "glm47", "glm45", _THINK + _TOOL_CALL + _ARG),
    Pair("glm47", "ling3", "ling3", _THINK + _TOOL_CALL + _ARG),
    Pair("glm47", "poolside_v1", "poolside_v1", _THINK + _TOOL_CALL + _ARG + "<assistant>"),
    Pair("granite", "granite", "granite", "<|tool_call|>"),
    Pair("granite-20b-fc", "granite-20b-fc", "", "<function_call>"),
    Pair("hermes", "hermes", "qwen3", _THINK + _TOOL_CALL),
    Pair("hermes", "granite4", "", _THINK + _TOOL_CALL),
    Pair(
        "hy_v3",
        "hy_v3",
        "hy_v3",
        _THINK + _TOOL_CALL + _ARG + "<tool_calls> </tool_calls> <tool_sep>",
    ),
    Pair("inkling", "inkling", "inkling", _INKLING),
    Pair("internlm", "internlm", "", "<|action_start|> <|plugin|> <|action_end|>"),
    Pair("jamba", "jamba", "", "<tool_calls> </tool_calls>"),
    Pair("jamba", "hunyuan_a13b", "", "<tool_calls> </tool_calls>"),
    Pair("kimi_k2", "kimi_k2", "kimi_k2", _THINK + _KIMI),
    Pair("kimi_k3", "kimi_k3", "kimi_k3", "<|open|> <|sep|> <|close|>"),
    Pair("lfm2", "lfm2", "", "<|tool_call_start|> <|tool_call_end|>"),
    Pair("llama3_json", "llama3_json", "", "<|python_tag|>"),
    Pair("llama4_pythonic", "llama4_pythonic", "", "<|python_start|> <|python_end|>"),
    Pair("longcat", "longcat", "", "<longcat_tool_call> </longcat_tool_call>"),
    Pair("minicpm5", "minicpm5", "", _THINK),
    Pair(
        "minimax_m2",
        "minimax_m2",
        "minimax_m2",
        _THINK + "<minimax:tool_call> </minimax:tool_call>",
    ),
    Pair("minimax_m3", "minimax_m3", "minimax_m3", "]<]minimax[>[ <mm:think> </mm:think>"),
    Pair("mistral", "mistral", "mistral", "[TOOL_CALLS] [ARGS] [THINK] [/THINK]"),
    Pair("muse_glimmer", "muse_glimmer", "muse_glimmer", "<|message|> <|eot|>"),
    Pair("olmo3", "olmo3", "", "<function_calls> </function_calls>"),
    Pair("pythonic", "pythonic"),
    Pair("qwen3_coder", "qwen3_coder", "", _THINK + _TOOL_CALL),
    Pair("qwen3_coder", "mimo", "mimo", _THINK + _TOOL_CALL),
    Pair("qwen3_coder", "step3p5", "step3p5", _THINK + _TOOL_CALL),
    Pair(
        "seed_oss",
        "seed_oss",
        "seed_oss",
        "<seed:think> </seed:think> <seed:tool_call> </seed:tool_call>",
    ),
    Pair("step3", "step3", "", _THINK + _STEP),
    Pair("xlam", "xlam"),
)

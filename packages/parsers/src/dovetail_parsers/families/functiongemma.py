"""FunctionGemma: Gemma 4's notation with other tokens."""

from dovetail_parsers.families.gemma4 import braced
from dovetail_parsers.family import Family

FAMILY = Family(
    name="functiongemma",
    sample="<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
    tool_names=("functiongemma",),
    models={"*functiongemma*": None},
    marks=("<start_function_call>",),
    tools=braced("<start_function_call>", "<end_function_call>", "<escape>"),
)

"""FunctionGemma: Gemma 4's notation with other tokens."""

from dovetail_parsers.families.gemma4 import braced_format
from dovetail_parsers.family import Family

FAMILY = Family(
    name="functiongemma",
    sample="<start_function_call>call:get_weather{city:<escape>Paris<escape>}<end_function_call>",
    tool_names=("functiongemma",),
    models={"*functiongemma*": None},
    template_markers=("<start_function_call>",),
    tools=braced_format("<start_function_call>", "<end_function_call>", "<escape>"),
)

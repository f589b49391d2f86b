"""The billing line that Claude Code puts before its system prompt.

    x-anthropic-billing-header: cc_version=2.1.197.4f2; cc_entrypoint=cli; cch=0a1b2;

It changes with the first prompt, the entry point, sub-agents and compaction, and stands at the very
start: left in, no two sessions share a prefix. Only a block that begins with it loses it; a text
that quotes it elsewhere stays as it is.
"""

import re

_BILLING_HEADER = "x-anthropic-billing-header:"

# `key=value;` any number of times. A last field that ends the line may lack its semicolon.
_BILLING_FIELDS = re.compile(r"(?:[ \t]*[\w.-]+=[^;\n]*;)+(?:[ \t]*[\w.-]+=\S*[ \t]*\r?$)?", re.M)


def strip_preamble(text: str) -> str:
    """The text without the billing line it begins with, if it does.

    What follows the last field on the same line is kept, and so is everything behind the line.
    """
    if not text.startswith(_BILLING_HEADER):
        return text
    fields = _BILLING_FIELDS.match(text, len(_BILLING_HEADER))
    if fields is not None:
        return text[fields.end() :].lstrip()
    _, _, rest = text.partition("\n")
    return rest.lstrip()

"""Forms as a structural tag, the JSON notation of xgrammar, with the grammar inside.

Its native formats become the same rules in the engine, but name their tokens, which servers
refuse before they have a tokenizer, and nest no deeper than those allow. The grammar does not.
"""

import json

from dovetail_parsers.constraint.ebnf import write_ebnf
from dovetail_parsers.constraint.nodes import GrammarSpec


def write_structural_tag(form: GrammarSpec) -> str:
    grammar = {"type": "grammar", "grammar": write_ebnf(form)}
    return json.dumps({"type": "structural_tag", "format": grammar}, ensure_ascii=False)

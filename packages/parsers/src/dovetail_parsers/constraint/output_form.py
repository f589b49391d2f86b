"""The grammar of visible output in the format that a request requires."""

from dovetail_model import InvalidRequest, OutputFormat, Unsupported
from dovetail_parsers.constraint.bnf_reader import is_bnf, read_bnf_grammar
from dovetail_parsers.constraint.custom_grammar import read_lark_grammar, read_regex
from dovetail_parsers.constraint.nodes import Node, Rules, choice, text
from dovetail_parsers.constraint.notation import JSON
from dovetail_parsers.constraint.options import TypedOption
from dovetail_parsers.constraint.pattern import UnsupportedPattern
from dovetail_parsers.constraint.schema import ValueGrammar
from dovetail_parsers.constraint.style import RawStyle

_MAX_PATTERN_CHARS = 4_000
_RAW = RawStyle(())


def output_form(output: OutputFormat, rules: Rules) -> Node:
    """Return the grammar of a format other than text.

    Raises `Unsupported`, with the field of the request, if no grammar can express the format.
    """
    try:
        return _form(output, rules)
    except (UnsupportedPattern, RecursionError) as error:
        reason = str(error) or "it uses features that are not supported"
        if isinstance(error, RecursionError):
            reason = "its rules are nested too deeply"
        message = f"{output.field}: cannot be enforced: {reason}"
        raise Unsupported(message, param=output.field) from error


def _form(output: OutputFormat, rules: Rules) -> Node:
    match output.kind:
        case "choice":
            return _choice(output)
        case "regex":
            return _regex(output.text)
        case "grammar" if is_bnf(output.text):
            return read_bnf_grammar(output.text, rules)
        case "grammar":
            return read_lark_grammar(output.text, _RAW, rules)
    if output.kind == "json_object" or output.schema is None:
        return ValueGrammar({}, JSON, rules).option(TypedOption("object", {}))
    return ValueGrammar(output.schema, JSON, rules).value(output.schema)


def _choice(output: OutputFormat) -> Node:
    if not output.choices or not all(output.choices):
        message = f"{output.field}: must be a list of texts that are not empty"
        raise InvalidRequest(message, param=output.field)
    return choice(*map(text, output.choices))


def _regex(pattern: str) -> Node:
    """The whole output matches the pattern, with or without anchors around it."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise UnsupportedPattern(f"it has more than {_MAX_PATTERN_CHARS} characters")
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not pattern.endswith("\\$"):
        pattern = pattern[:-1]
    return read_regex(pattern, _RAW)

"""Check the vocabulary: retired words in identifiers, retired phrases in prose, duplicate classes.

`docs/architecture.md` has the glossary. A word is retired where the field has an established term
for what it named. Identifiers are compared word by word: `told_ids` contains `told`, `toldness`
does not. Some words are retired only as the whole name of a class. Formats that are stored or sent
keep their field names; those are listed as exceptions.

Prose is documentation, docstrings, comments, and the strings of source modules (errors, logs, help
texts). Code in backticks or fences is not prose. `python tools/check_vocabulary.py PATH...` limits
the report to files below the given paths.
"""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Retired word -> what to use instead.
RETIRED = {
    **dict.fromkeys(("thought", "thoughts"), "reasoning"),
    **dict.fromkeys(("told", "tell", "tells", "telling"), "report, message, emitted, text"),
    **dict.fromkeys(("said", "say", "says", "saying"), "output, generated, message"),
    **dict.fromkeys(("spoken", "speak", "speaks", "speaking", "speaker", "speech"), "output, run"),
    **dict.fromkeys(("voice", "voices"), "OutputSpec"),
    **dict.fromkeys(("hear", "hears", "heard", "hearing"), "push, write, received"),
    **dict.fromkeys(("talk", "talks", "talked", "talking"), "chat, conversation, send"),
    "audience": "EventSink",
    **dict.fromkeys(("ask", "asks", "asked", "asking"), "request, requested"),
    **dict.fromkeys(("answer", "answers", "answered", "answering"), "response, result"),
    **dict.fromkeys(("kept", "keeping"), "stored, retained, saved"),
    **dict.fromkeys(("shelf", "shelves"), "cache"),
    **dict.fromkeys(("crew", "siblings", "sibling"), "supervisor, workers, peers"),
    **dict.fromkeys(("settle", "settles", "settled", "settling"), "finish, resolve, stable"),
    **dict.fromkeys(("hush", "epitaph", "nobody", "doctor"), "a standard term"),
    **dict.fromkeys(("patience", "shunned"), "timeout, in_backoff"),
    **dict.fromkeys(("lifeline", "outlet", "outward"), "guard, writer, public"),
    **dict.fromkeys(("beside",), "with, in_thread, alongside"),
    **dict.fromkeys(("acted", "played"), "scripted, simulated"),
    "cut": "truncated, split",
    "most": "max",
    "least": "min",
}

#: Retired name of a class -> what to use instead.
RETIRED_CLASSES = {
    "Abilities": "EngineCapabilities",
    "Account": "RequestTracker",
    "Audience": "EventSink",
    "Course": "RequestTracker",
    "Hush": "LogThrottle",
    "Kept": "ResponseStore",
    "Lifeline": "DisconnectGuard",
    "Listener": "TokenSink",
    "MessageEngine": "UpstreamEngine",
    "Offered": "ModelEntry",
    "Patience": "Timeouts",
    "Relay": "UpstreamRunner",
    "Relayed": "UpstreamModel",
    "RequestEnd": "RequestRecord",
    "Served": "TokenModel",
    "Shelf": "ResponseCache",
    "Speaker": "ChoiceRunner",
    "Speech": "TemplateProfile",
    "Standing": "LimitStatus",
    "Visit": "RateLimitLease",
    "Voice": "OutputSpec",
}

#: Identifiers that keep a retired word: wire fields, stored fields, options and settings.
EXCEPTIONS = frozenset({"clear_at_least"})

#: Retired phrase (a regular expression, whole words, any case) -> what to write instead.
PHRASES = {
    r"thoughts?": "reasoning, reasoning span",
    r"told|tells?|telling": "returned, reported, passed; reports",
    r"said|says?|saying": "generated, sent; states, reports",
    r"spoken?|speak|heard?|hears": "generated, emitted, received",
    r"asks?|asked|asking": "requests, requested; sends",
    r"answers?|answered|answering": "response, responds, returns",
    r"nobody|somebody|who(m)?ever": "no client, a client, any client",
    r"believed?|believes": "trusted",
    r"(is|are|was|were) wanted|wanted of": "is expected, is required, must be",
    r"of no use": "cannot be used, has no effect",
    r"beside": "next to, with, alongside, in addition to",
    r"cuts?|cutting": "truncated, split, ended",
    r"mend(s|ed|ing)?": "fix, repair",
    r"goes on|go on|went on|gone on|going on": "continues",
    r"by and by|little by little": "incrementally, in chunks",
    r"without a word": "without output",
    r"lets? itself|let themselves": "can be, allows",
    r"or whole|as a whole": "streaming or non-streaming; complete",
    r"stands? (at|there|together|before|beside|behind|by itself)": "is, appears",
    r"(a|the|prefix) doctor": "prefix diagnostics",
    r"lost tokens|tokens? (are |were |is |was )?lost": "re-prefilled tokens",
    r"acted|crew|siblings?|shelf|shelves": "scripted; supervisor; peers; cache",
    r"kept responses?|responses? (that are|that is|is|are) kept": "stored response",
    r"(tokens?|requests?|turns?|times) an? (second|minute|request|turn|key)": "per",
    r"there being|midst|anew|lest|thereof|wherefore": "plain present-day English",
    r"forgets?|forgotten|remember(s|ed)?": "deletes, evicts; records, stores",
    r"sees? to it|makes? do|come what may|to and fro": "ensures; a plain statement",
    r"hang(s|ing)? up|hung up": "disconnects",
}

#: Modules and pages whose text is data (prompts, scripted sessions, phrases), not messages.
DATA_MODULES = re.compile(
    r"tools/check_vocabulary\.py$|/demo/|summary_text\.py$|codex_instructions\.md$"
    r"|families/(granite|hunyuan_a13b)\.py$|/(eval|agent_model)/tasks\w*\.py$|/gpu/sample_texts\.py$"
)

#: Files that the tasks of `dovetail compare` start from, and their results.
TASK_FILES = re.compile(r"/compare/tasks/[^/]+/(workspace|solution)/")

#: Where one name may be defined in several modules: each API's or engine's own wire types.
WIRE_MODULES = re.compile(r"(^|\.)(wire|frames|messages)$")

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def main() -> int:
    findings = [
        *retired_identifiers(ROOT),
        *retired_classes(ROOT),
        *duplicate_classes(ROOT),
        *retired_phrases(ROOT),
    ]
    if paths := tuple(sys.argv[1:]):
        findings = [finding for finding in findings if finding.startswith(paths)]
    for finding in findings:
        print(finding)
    print(f"vocabulary: {len(findings)} findings")
    return 1 if findings else 0


def retired_identifiers(root: Path) -> Iterator[str]:
    """Find identifiers and module names that contain a retired word."""
    for path in _sources(root):
        for name, line in sorted(set(_defined_names(_parse(path))), key=str):
            retired = [word for word in _words(name) if word in RETIRED]
            if retired and name not in EXCEPTIONS:
                where = f"{path.relative_to(root)}:{line}"
                yield f"{where}: {name}: use {RETIRED[retired[0]]} instead of {retired[0]!r}"
        for word in _words(path.stem):
            if word in RETIRED:
                yield f"{path.relative_to(root)}: the module's name contains {word!r}"


def retired_classes(root: Path) -> Iterator[str]:
    """Find classes with a retired name, wherever they are defined."""
    for path in _sources(root):
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.ClassDef) and node.name.strip("_") in RETIRED_CLASSES:
                where = f"{path.relative_to(root)}:{node.lineno}"
                yield f"{where}: class {node.name}: use {RETIRED_CLASSES[node.name.strip('_')]}"


def unused_exceptions(root: Path) -> frozenset[str]:
    """Return the exceptions that no module defines any more."""
    defined = (name for path in _sources(root) for name, _ in _defined_names(_parse(path)))
    return EXCEPTIONS.difference(defined)


def duplicate_classes(root: Path) -> Iterator[str]:
    """Find public classes that a distribution defines under one name in several modules."""
    for source in sorted(root.glob("packages/*/src")):
        found: dict[str, list[str]] = defaultdict(list)
        for path in sorted(source.rglob("*.py")):
            module = ".".join(path.relative_to(source).with_suffix("").parts)
            if WIRE_MODULES.search(module) or TASK_FILES.search(path.as_posix()):
                continue
            for node in _parse(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(module)
        for name, modules in sorted(found.items()):
            if len(modules) > 1:
                yield f"class {name} is defined in {' and '.join(modules)}"


def retired_phrases(root: Path) -> Iterator[str]:
    """Find retired phrases in documentation, docstrings, comments and messages."""
    found = (*root.glob("*.md"), *root.glob("[dpe]*/**/*.md"))
    data = (DATA_MODULES, TASK_FILES)
    pages = [path for path in found if not any(one.search(path.as_posix()) for one in data)]
    for path in sorted({*pages, *_sources(root)}):
        prose = _page_prose if path.suffix == ".md" else _module_prose
        for line, text in prose(path):
            for match in _PHRASE.finditer(text):
                where = f"{path.relative_to(root)}:{line + text.count(chr(10), 0, match.start())}"
                yield f"{where}: {match[0]!r}: use {_replacement(match[0])}"


_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)


def _replacement(phrase: str) -> str:
    return next(use for known, use in PHRASES.items() if re.fullmatch(known, phrase, re.I))


def _page_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page with their numbers, without code and measured responses."""
    fence, measured = "", False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("<!-- servers"):  # the tables of docs/verify.md quote other servers
            measured = not measured
        elif line.lstrip().startswith(fence or ("```", "~~~")):
            fence = "" if fence else line.lstrip()[:3]
        elif not fence and not measured:
            yield number, _without_code(line)


def _module_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings and comments; in source folders, every string that contains a space."""
    source = path.read_text("utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _without_code(token.string)
    if DATA_MODULES.search(path.as_posix()):
        return
    messages = "/tests/" not in path.as_posix()
    for node in ast.walk(ast.parse(source)):
        text = getattr(node, "value", None)
        if messages and isinstance(node, ast.Constant) and isinstance(text, str) and " " in text:
            yield node.lineno, _without_code(text)
        elif not messages and isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, _without_code(text)


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _without_code(text: str) -> str:
    return re.sub(r"(`+)[^`]+\1", lambda code: "\n" * code[0].count("\n"), text)


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _sources(root: Path) -> list[Path]:
    folders = ("packages/*/src", "packages/*/tests", "tests", "benchmarks", "tools", "examples")
    found = (path for folder in folders for path in root.glob(f"{folder}/**/*.py"))
    return sorted(path for path in found if not TASK_FILES.search(path.as_posix()))


def _defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines: classes, functions, parameters, variables, fields."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, node.lineno
            case ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno
            case ast.MatchMapping(rest=str(name)):
                yield name, node.lineno
            case ast.Call(func=ast.Name(id="replace") | ast.Attribute(attr="replace")):
                yield from ((one.arg, node.lineno) for one in node.keywords if one.arg)


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


if __name__ == "__main__":
    sys.exit(main())

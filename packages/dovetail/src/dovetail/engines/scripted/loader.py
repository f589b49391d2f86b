"""Load script files. Errors name the file, the line and the entry."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dovetail.engines.scripted.script import (
    ReplyDelay,
    ReplyFailure,
    ReplyInterruption,
    Script,
    ScriptedReply,
    ScriptEntry,
    ScriptError,
    ScriptFile,
    ScriptRule,
)

STRUCTURED_SUFFIXES = frozenset({".yaml", ".yml", ".json"})

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.S)
_PATH_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")


def load_script(path: str | Path) -> Script:
    """Load a script. A file whose name ends in neither YAML nor JSON is one plain reply."""
    path = Path(path)
    text = _read_text(path, str(path))
    if path.suffix.lower() not in STRUCTURED_SUFFIXES:
        return Script.from_text(text.removesuffix("\n"))
    return parse_script(text, str(path), path.parent)


def parse_script(text: str, name: str = "the script", folder: Path | None = None) -> Script:
    """Parse a script from YAML text. `folder` is where the files that it names are looked up."""
    return _ScriptLoader(name, text, folder or Path()).load()


class _ScriptLoader:
    """Loads one file. Paths have msgspec's format: `.turns[2].chunks`."""

    def __init__(self, name: str, text: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        try:
            self._tree = yaml.compose(text, yaml.SafeLoader)
            self._data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ScriptError(f"{name}: not YAML: {error}") from error

    def load(self) -> Script:
        is_list = isinstance(self._data, list)
        document_type: Any = tuple[ScriptEntry, ...] if is_list else ScriptFile
        try:
            document = msgspec.convert(self._data, document_type)
        except msgspec.ValidationError as error:
            raise self._translate_error(str(error)) from None
        if is_list:
            entries = [(f"[{n}]", entry) for n, entry in enumerate(document)]
            return self._build_script(
                [(path, entry) for path, entry in entries if entry.when is not None],
                [(path, entry) for path, entry in entries if entry.when is None],
            )
        rules = [(f".rules[{n}]", entry) for n, entry in enumerate(document.rules)]
        turns = [(f".turns[{n}]", entry) for n, entry in enumerate(document.turns)]
        script = self._build_script(rules, turns)
        return Script(script.rules, document.end)

    def _build_script(
        self, rules: list[tuple[str, ScriptEntry]], turns: list[tuple[str, ScriptEntry]]
    ) -> Script:
        built = [self._build_rule(path, entry) for path, entry in rules]
        if turns:
            built.append(ScriptRule(self._build_turns(turns)))
        if not built:
            raise self._error("", "the script must contain turns or rules")
        return Script(tuple(built))

    def _build_rule(self, path: str, entry: ScriptEntry) -> ScriptRule:
        self._check_when(path, entry)
        if entry.turns is None:
            return ScriptRule((self._build_reply(path, entry),), entry.when, entry.times)
        if _reply_keys(entry):
            raise self._error(path, "a rule must have either `turns` or its own reply, not both")
        turns = [(f"{path}.turns[{n}]", turn) for n, turn in enumerate(entry.turns)]
        return ScriptRule(self._build_turns(turns), entry.when, entry.times)

    def _check_when(self, path: str, entry: ScriptEntry) -> None:
        if entry.when is None or entry.when.regex is None:
            return
        try:
            re.compile(entry.when.regex)
        except re.error as error:
            raise self._error(f"{path}.when.regex", f"not a regular expression: {error}") from error

    def _build_turns(self, turns: Iterable[tuple[str, ScriptEntry]]) -> tuple[ScriptedReply, ...]:
        replies = [repeat(self._build_turn(path, turn), turn.times or 1) for path, turn in turns]
        return tuple(chain.from_iterable(replies))

    def _build_turn(self, path: str, entry: ScriptEntry) -> ScriptedReply:
        if entry.when is not None or entry.turns is not None:
            raise self._error(path, "a turn cannot have `when` or `turns`: use a rule")
        return self._build_reply(path, entry)

    def _build_reply(self, path: str, entry: ScriptEntry) -> ScriptedReply:
        sizes, pieces = self._chunks(path, entry)
        delay, logprobs = entry.delay, entry.logprobs
        return ScriptedReply(
            pieces=pieces or self._reply_pieces(path, entry),
            location=self._location(path),
            chunk_sizes=sizes,
            one_delta_per_piece=bool(pieces),
            delay=delay if isinstance(delay, ReplyDelay) else ReplyDelay(first=delay),
            wait_for=None if entry.wait_for is None else self._folder / entry.wait_for,
            finish=entry.finish,
            stop=entry.stop,
            logprobs=(logprobs if isinstance(logprobs, tuple) else (logprobs,)) or (0.0,),
            interruption=self._interruption(path, entry),
        )

    def _reply_pieces(self, path: str, entry: ScriptEntry) -> tuple[str | tuple[int, ...], ...]:
        keys = _reply_keys(entry)
        if len(keys) > 1:
            raise self._error(path, f"only one of {', '.join(keys)} can define the reply")
        if entry.file is not None:
            file = self._folder / entry.file
            return (_read_text(file, self._location(f"{path}.file")).removesuffix("\n"),)
        if entry.tokens is not None:
            return (entry.tokens,)
        if entry.text is not None or self._interruption(path, entry) is not None:
            return (entry.text or "",)
        raise self._error(
            path, "a reply is required: text, file, tokens, chunks, fail, die or hang"
        )

    def _chunks(
        self, path: str, entry: ScriptEntry
    ) -> tuple[tuple[int, ...] | None, tuple[str | tuple[int, ...], ...]]:
        """Return the sizes of deltas, or the deltas themselves."""
        chunks = entry.chunks
        if not isinstance(chunks, tuple):
            return (None if chunks is None else (chunks,)), ()
        sizes = tuple(item for item in chunks if isinstance(item, int))
        pieces = tuple(item for item in chunks if not isinstance(item, int))
        if (sizes and pieces) or not chunks:
            raise self._error(f"{path}.chunks", "must be either all sizes or all pieces")
        if pieces and _reply_keys(entry):
            raise self._error(
                f"{path}.chunks", "pieces are the complete reply and cannot be combined with text"
            )
        return sizes or None, pieces

    def _interruption(self, path: str, entry: ScriptEntry) -> ReplyInterruption | None:
        interruptions = _interruptions(entry)
        if len(interruptions) > 1:
            modes = ", ".join(found.mode for found in interruptions)
            raise self._error(path, f"only one of {modes} can be set")
        return interruptions[0] if interruptions else None

    def _translate_error(self, message: str) -> ScriptError:
        found = _PATH.match(message)
        assert found is not None
        return self._error(found["path"] or "", found["what"])

    def _error(self, path: str, message: str) -> ScriptError:
        return ScriptError(f"{self._location(path)}: {message}")

    def _location(self, path: str) -> str:
        """Convert a path to the file, the line and the path of the entry."""
        node, line = self._tree, 1
        for index, key in _PATH_STEP.findall(path):
            node = _child_node(node, index, key)
            line = node.start_mark.line + 1 if node is not None else line
        entry_path = path.lstrip(".")
        return f"{self._name}, line {line}" + (f", {entry_path}" if entry_path else "")


def _child_node(node: yaml.Node | None, index: str, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and index:
        child: yaml.Node = node.value[int(index)]
        return child
    if isinstance(node, yaml.MappingNode):
        pairs: Mapping[str, yaml.Node] = {name.value: value for name, value in node.value}
        return pairs.get(key)
    return None


def _reply_keys(entry: ScriptEntry) -> list[str]:
    return [name for name in ("text", "file", "tokens") if getattr(entry, name) is not None]


def _interruptions(entry: ScriptEntry) -> list[ReplyInterruption]:
    """Return the interruptions that an entry sets. True means immediately, False means none."""
    found = []
    if entry.fail is not None:
        fail = ReplyFailure(message=entry.fail) if isinstance(entry.fail, str) else entry.fail
        found.append(ReplyInterruption("fail", fail.after, fail.kind, fail.message))
    if entry.die is not None and entry.die is not False:
        found.append(ReplyInterruption("die", 0 if entry.die is True else entry.die))
    if entry.hang is not None and entry.hang is not False:
        found.append(ReplyInterruption("hang", 0 if entry.hang is True else entry.hang))
    return found


def _read_text(path: Path, location: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{location}: cannot be read: {error}") from error

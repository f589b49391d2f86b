"""Script files, read. A mistake is told with the file, the line and the entry."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import msgspec
import yaml

from dovetail.engines.scripted.script import (
    Answer,
    Break,
    Delay,
    Entry,
    Fail,
    Rule,
    Script,
    ScriptError,
    ScriptFile,
)

STRUCTURED = frozenset({".yaml", ".yml", ".json"})

_PATH = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.S)
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")


def read_script(path: str | Path) -> Script:
    """The script in a file. What is neither YAML nor JSON by its name is one plain answer."""
    path = Path(path)
    text = _read(path, str(path))
    if path.suffix.lower() not in STRUCTURED:
        return Script.of_text(text.removesuffix("\n"))
    return parse_script(text, str(path), path.parent)


def parse_script(text: str, name: str = "the script", folder: Path | None = None) -> Script:
    """The script in a YAML text. `folder` is where the files that it names are looked for."""
    return _Reader(name, text, folder or Path()).script()


class _Reader:
    """Reads one file. Paths are those of msgspec: `.turns[2].chunks`."""

    def __init__(self, name: str, text: str, folder: Path) -> None:
        self._name = name
        self._folder = folder
        try:
            self._tree = yaml.compose(text, yaml.SafeLoader)
            self._data = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ScriptError(f"{name}: not YAML: {error}") from error

    def script(self) -> Script:
        listed = isinstance(self._data, list)
        form: Any = tuple[Entry, ...] if listed else ScriptFile
        try:
            read = msgspec.convert(self._data, form)
        except msgspec.ValidationError as error:
            raise self._translate(str(error)) from None
        if listed:
            entries = [(f"[{n}]", entry) for n, entry in enumerate(read)]
            return self._script(
                [(path, entry) for path, entry in entries if entry.when is not None],
                [(path, entry) for path, entry in entries if entry.when is None],
            )
        rules = [(f".rules[{n}]", entry) for n, entry in enumerate(read.rules)]
        turns = [(f".turns[{n}]", entry) for n, entry in enumerate(read.turns)]
        script = self._script(rules, turns)
        return Script(script.rules, read.end)

    def _script(self, rules: list[tuple[str, Entry]], turns: list[tuple[str, Entry]]) -> Script:
        made = [self._rule(path, entry) for path, entry in rules]
        if turns:
            made.append(Rule(self._turns(turns)))
        if not made:
            raise self._wrong("", "there is nothing to play: no turns and no rules")
        return Script(tuple(made))

    def _rule(self, path: str, entry: Entry) -> Rule:
        self._check_when(path, entry)
        if entry.turns is None:
            return Rule((self._answer(path, entry),), entry.when, entry.times)
        if _said(entry):
            raise self._wrong(path, "a rule has `turns` or an answer of its own, not both")
        turns = [(f"{path}.turns[{n}]", turn) for n, turn in enumerate(entry.turns)]
        return Rule(self._turns(turns), entry.when, entry.times)

    def _check_when(self, path: str, entry: Entry) -> None:
        if entry.when is None or entry.when.regex is None:
            return
        try:
            re.compile(entry.when.regex)
        except re.error as error:
            raise self._wrong(f"{path}.when.regex", f"not a regular expression: {error}") from error

    def _turns(self, turns: Iterable[tuple[str, Entry]]) -> tuple[Answer, ...]:
        made = [repeat(self._turn(path, turn), turn.times or 1) for path, turn in turns]
        return tuple(chain.from_iterable(made))

    def _turn(self, path: str, entry: Entry) -> Answer:
        if entry.when is not None or entry.turns is not None:
            raise self._wrong(path, "a turn has neither `when` nor `turns`: that makes a rule")
        return self._answer(path, entry)

    def _answer(self, path: str, entry: Entry) -> Answer:
        sizes, pieces = self._chunks(path, entry)
        delay, logprobs = entry.delay, entry.logprobs
        return Answer(
            pieces=pieces or self._whole(path, entry),
            where=self._where(path),
            sizes=sizes,
            keep_pieces=bool(pieces),
            delay=delay if isinstance(delay, Delay) else Delay(first=delay),
            wait_for=None if entry.wait_for is None else self._folder / entry.wait_for,
            finish=entry.finish,
            stop=entry.stop,
            logprobs=(logprobs if isinstance(logprobs, tuple) else (logprobs,)) or (0.0,),
            breaks=self._break(path, entry),
        )

    def _whole(self, path: str, entry: Entry) -> tuple[str | tuple[int, ...], ...]:
        said = _said(entry)
        if len(said) > 1:
            raise self._wrong(path, f"only one of {', '.join(said)} can be the answer")
        if entry.file is not None:
            file = self._folder / entry.file
            return (_read(file, self._where(f"{path}.file")).removesuffix("\n"),)
        if entry.tokens is not None:
            return (entry.tokens,)
        if entry.text is not None or self._break(path, entry) is not None:
            return (entry.text or "",)
        raise self._wrong(path, "there is no answer: text, file, tokens, chunks, fail, die or hang")

    def _chunks(
        self, path: str, entry: Entry
    ) -> tuple[tuple[int, ...] | None, tuple[str | tuple[int, ...], ...]]:
        """Sizes of deltas, or the deltas themselves."""
        given = entry.chunks
        if not isinstance(given, tuple):
            return (None if given is None else (given,)), ()
        sizes = tuple(item for item in given if isinstance(item, int))
        pieces = tuple(item for item in given if not isinstance(item, int))
        if (sizes and pieces) or not given:
            raise self._wrong(f"{path}.chunks", "either sizes or pieces are wanted")
        if pieces and _said(entry):
            raise self._wrong(f"{path}.chunks", "pieces are the whole answer: no text beside them")
        return sizes or None, pieces

    def _break(self, path: str, entry: Entry) -> Break | None:
        breaks = _breaks(entry)
        if len(breaks) > 1:
            manners = ", ".join(found.manner for found in breaks)
            raise self._wrong(path, f"only one of {manners} can happen")
        return breaks[0] if breaks else None

    def _translate(self, said: str) -> ScriptError:
        found = _PATH.match(said)
        assert found is not None
        return self._wrong(found["path"] or "", found["what"])

    def _wrong(self, path: str, what: str) -> ScriptError:
        return ScriptError(f"{self._where(path)}: {what}")

    def _where(self, path: str) -> str:
        """A path as the file, the line and the way to the entry."""
        node, line = self._tree, 1
        for index, key in _STEP.findall(path):
            node = _below(node, index, key)
            line = node.start_mark.line + 1 if node is not None else line
        place = path.lstrip(".")
        return f"{self._name}, line {line}" + (f", {place}" if place else "")


def _below(node: yaml.Node | None, index: str, key: str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and index:
        below: yaml.Node = node.value[int(index)]
        return below
    if isinstance(node, yaml.MappingNode):
        pairs: Mapping[str, yaml.Node] = {name.value: value for name, value in node.value}
        return pairs.get(key)
    return None


def _said(entry: Entry) -> list[str]:
    return [name for name in ("text", "file", "tokens") if getattr(entry, name) is not None]


def _breaks(entry: Entry) -> list[Break]:
    """Every way to break off that an entry names. True means at once, False not at all."""
    found = []
    if entry.fail is not None:
        fail = Fail(message=entry.fail) if isinstance(entry.fail, str) else entry.fail
        found.append(Break("fail", fail.after, fail.kind, fail.message))
    if entry.die is not None and entry.die is not False:
        found.append(Break("die", 0 if entry.die is True else entry.die))
    if entry.hang is not None and entry.hang is not False:
        found.append(Break("hang", 0 if entry.hang is True else entry.hang))
    return found


def _read(path: Path, where: str) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{where}: cannot be read: {error}") from error

"""Tasks on text files: create, read, change, append, remove, copy."""

import json
import re
from collections.abc import Mapping

from kit import Check, Kit, Solution, Step, Task
from names import Names


def distractors(names: Names, taken: Mapping[str, str], limit: int = 3) -> dict[str, str]:
    """Return further files, which the task does not need."""
    files = {}
    for path in names.paths(names.number(0, limit), "txt", "md"):
        if path not in taken:
            files[path] = "".join(f"{names.sentence()}\n" for _ in range(names.number(1, 3)))
    return files


def expect_file(path: str, expected: str) -> Check:
    def check(files: Mapping[str, str], _: str) -> str | None:
        if path not in files:
            return f"{path} does not exist"
        return None if files[path].rstrip() == expected.rstrip() else f"{path} is wrong"

    return check


def expect_text(*values: str) -> Check:
    def check(_: Mapping[str, str], final: str) -> str | None:
        missing = [v for v in values if not re.search(rf"(?<!\w){re.escape(v)}(?!\w)", final)]
        return f"the final text lacks {missing}" if missing else None

    return check


def read_steps(names: Names, kit: Kit, path: str, text: str) -> Solution:
    """Read a file. Sometimes its path is misspelled first, which the model must correct."""
    if names.chance(0.06):
        folder, slash, name = path.rpartition("/")
        stem, dot, suffix = name.rpartition(".")
        wrong = f"{folder}{slash}{names.noun()}{dot}{suffix}"
        if wrong != path and stem:
            yield Step(text, (kit.read(wrong),), learn=False)
            text = f"That was the wrong path. I read {path}."
    yield Step(text, (kit.read(path),))


def random_content(names: Names) -> tuple[str, str]:
    """Return a content and a suffix for it."""
    kind = names.number(0, 5)
    if kind == 0:
        title = f"{names.adjective()} {names.noun()}".title()
        items = "".join(f"- {names.phrase_of_words()}\n" for _ in range(names.number(2, 5)))
        return f"# {title}\n\n{items}", "md"
    if kind == 1:
        return "".join(f"{names.sentence()}\n" for _ in range(names.number(1, 3))), "txt"
    if kind == 2:
        keys = names.nouns(names.number(2, 4))
        return f"[{names.noun()}]\n" + "".join(f"{k} = {names.value()}\n" for k in keys), "ini"
    if kind == 3:
        pairs = {key: names.number(1, 500) for key in names.nouns(names.number(2, 3))}
        return json.dumps(pairs, indent=2) + "\n", "json"
    if kind == 4:
        rows = "".join(f"{names.noun()},{names.number(1, 99)}\n" for _ in range(names.number(2, 4)))
        return f"name,count\n{rows}", "csv"
    return "".join(
        f"{names.noun()} {names.number(1, 99)}\n" for _ in range(names.number(2, 5))
    ), "txt"


def create(names: Names) -> Task:
    """Write a given text to a file, and maybe read it back."""
    content, suffix = random_content(names)
    path = names.path(suffix)
    back = names.chance(0.3)
    prompt = names.phrase(
        (
            f"Create the file {path} with exactly this text{{back}}:\n\n{content}",
            f"Write the file {path} with this content{{back}}:\n\n{content}",
            f"Please make a new file {path}{{back}}. Its text:\n\n{content}",
            f"I need a file {path} that contains the following text{{back}}:\n\n{content}",
            f"Write the file {path} with exactly this text{{back}}:\n\n{content}",
        )
    ).replace("{back}", ", then read it back to check it" if back else "")

    def solve(kit: Kit) -> Solution:
        yield Step(
            names.choice((f"I will write {path}.", f"I create {path}.")),
            (kit.write(path, content),),
        )
        if back:
            yield Step("I read it back to check it.", (kit.read(path),))
            yield Step(f"{path} is written and has the right text.")
        else:
            yield Step(f"I created {path}.")

    return Task("create", prompt, solve, expect_file(path, content), distractors(names, {path: ""}))


def create_line(names: Names) -> Task:
    """Write one line to a file."""
    line = names.choice((names.sentence(), names.noun(), f"{names.noun()} {names.number(1, 999)}"))
    path = names.path("txt", "md", "log")
    prompt = names.phrase(
        (
            f'Write the line "{line}" to {path}.',
            f"Create {path} with one line: {line}",
            f'Put the text "{line}" into a new file {path}.',
            f'Make the file {path}. It must contain only this line: "{line}"',
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I write the line to {path}.", (kit.write(path, f"{line}\n"),))
        yield Step(f"I wrote the line to {path}.")

    return Task(
        "create_line", prompt, solve, expect_file(path, line), distractors(names, {path: ""})
    )


def _settings(names: Names, keys: list[str], values: list[str], style: int) -> tuple[str, str, str]:
    """Return settings in one of several notations: the text, its suffix and a line's form."""
    if style == 0:
        form, suffix = "{} = {}", "ini"
        head = f"[{names.noun()}]\n"
    elif style == 1:
        form, suffix, head = "{}: {}", "yaml", ""
    elif style == 2:
        form, suffix, head = "{}={}", "env", ""
        keys[:] = [key.upper() for key in keys]
    else:
        form, suffix, head = "{} = {}", "toml", ""
    lines = [form.format(k, v) for k, v in zip(keys, values, strict=True)]
    return head + "".join(f"{line}\n" for line in lines), suffix, form


def _random_settings(names: Names) -> tuple[list[str], list[str], str, str, str]:
    keys = names.nouns(names.number(3, 6))
    if names.chance(0.4):
        common = [
            "port",
            "timeout",
            "retries",
            "workers",
            "limit",
            "host",
            "level",
            "size",
            "depth",
        ]
        keys = list(dict.fromkeys([*keys[:2], *names.rng.sample(common, 3)]))
    names.rng.shuffle(keys)
    values = [names.value() for _ in keys]
    text, suffix, form = _settings(names, keys, values, names.number(0, 3))
    return keys, values, text, suffix, form


def read_value(names: Names) -> Task:
    """Report the value of a setting."""
    keys, values, text, suffix, _ = _random_settings(names)
    path = names.path(suffix)
    at = names.number(0, len(keys) - 1)
    key, value = keys[at], values[at]
    prompt = names.phrase(
        (
            f"What is the value of {key} in {path}?",
            f"Which value does {key} have in the file {path}?",
            f"Tell me the setting {key} of {path}.",
            f"Read {path} and tell me what {key} is set to.",
            f"Look into {path}: what is {key} set to?",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path}.")
        yield Step(f"{key} is set to {value} in {path}.")

    files = {path: text}
    return Task("read_value", prompt, solve, expect_text(value), files | distractors(names, files))


def copy_value(names: Names) -> Task:
    """Write the value of a setting to another file."""
    keys, values, text, suffix, _ = _random_settings(names)
    path, out = names.path(suffix), names.path("txt")
    at = names.number(0, len(keys) - 1)
    key, value = keys[at], values[at]
    prompt = names.phrase(
        (
            f"Read {path} and write the value of {key}, nothing else, to {out}.",
            f"Write the value that {key} has in {path} to the file {out}.",
            f"Find the value of {key} in {path} and put only this value into {out}.",
            f"The file {path} has a setting {key}. Write its value to {out}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path}.")
        yield Step(f"{key} is {value}. I write it to {out}.", (kit.write(out, f"{value}\n"),))
        yield Step(f"I wrote {value} to {out}.")

    files = {path: text}
    return Task(
        "copy_value", prompt, solve, expect_file(out, value), files | distractors(names, files)
    )


def set_value(names: Names) -> Task:
    """Change the value of a setting."""
    keys, values, text, suffix, form = _random_settings(names)
    path = names.path(suffix)
    at = names.number(0, len(keys) - 1)
    key, old = keys[at], values[at]
    new = names.value()
    while new == old:
        new = names.value()
    before, after = form.format(key, old), form.format(key, new)
    prompt = names.phrase(
        (
            f"In {path}, change {key} from {old} to {new}.",
            f"Set {key} to {new} in {path}.",
            f"Change the value of {key} in {path} to {new}. Change nothing else.",
            f"Please update {path}: {key} must be {new}.",
            f"The setting {key} in {path} has to become {new} instead of {old}.",
        )
    )
    slip = names.chance(0.12)

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path} first.")
        if slip:
            wrong = kit.edit(path, f"{key}  {old}", f"{key}  {new}")
            yield Step(f"I change {key} to {new}.", (wrong,), learn=False)
            yield Step(
                "The text did not match. I use the exact line.", (kit.edit(path, before, after),)
            )
        else:
            yield Step(f"I change {key} to {new}.", (kit.edit(path, before, after),))
        yield Step(f"I set {key} to {new} in {path}.")

    files = {path: text}
    check = expect_file(path, text.replace(f"{before}\n", f"{after}\n", 1))
    return Task("set_value", prompt, solve, check, files | distractors(names, files))


def set_in_section(names: Names) -> Task:
    """Change a value that several sections have: the old text needs the lines around it."""
    sections = names.nouns(names.number(2, 3))
    keys = ["port", "timeout", "retries", "limit", "level", "size"]
    key, last = names.rng.sample(keys, 2)
    old, new = names.rng.sample(range(2, 99), 2)
    target = names.number(0, len(sections) - 1)
    endings = [
        f"{last} = {names.number(100 * (i + 1), 100 * (i + 1) + 99)}" for i in range(len(sections))
    ]
    blocks = [f"[{s}]\n{key} = {old}\n{e}\n" for s, e in zip(sections, endings, strict=True)]
    text = "\n".join(blocks)
    changed = [*blocks]
    changed[target] = blocks[target].replace(f"{key} = {old}\n", f"{key} = {new}\n")
    section, path = sections[target], names.path("ini", "cfg")
    prompt = names.phrase(
        (
            (
                f"In {path}, change {key} of the section [{section}] from {old} to {new}. "
                f"Change nothing else."
            ),
            (
                f"Set {key} to {new} in the section {section} of {path}. The other sections "
                f"stay as they are."
            ),
            f"In the section [{section}] of {path}, {key} must be {new}.",
            f"Change the {key} in section [{section}] of the file {path} to {new}, only there.",
        )
    )
    before, after = f"[{section}]\n{key} = {old}", f"[{section}]\n{key} = {new}"
    slip = names.chance(0.25)

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path} first.")
        if slip:
            wrong = kit.edit(path, f"{key} = {old}", f"{key} = {new}")
            yield Step(f"I change {key}.", (wrong,), learn=False)
            yield Step(
                f"The text is not unique. I include the line [{section}].",
                (kit.edit(path, before, after),),
            )
        else:
            yield Step(
                f"I change {key} in [{section}], with the line of the section.",
                (kit.edit(path, before, after),),
            )
        yield Step(f"I set {key} to {new} in the section [{section}] of {path}.")

    files = {path: text}
    return Task(
        "set_in_section",
        prompt,
        solve,
        expect_file(path, "\n".join(changed)),
        files | distractors(names, files, 2),
    )


def replace_word(names: Names) -> Task:
    """Replace a word in a text."""
    lines = [names.sentence() for _ in range(names.number(2, 5))]
    old, new = names.nouns(2)
    while any(old in line or new in line for line in lines):
        old, new = names.nouns(2)
    at = names.number(0, len(lines) - 1)
    lines[at] = f"The {names.adjective()} {old} belongs to {names.person()}."
    text = "".join(f"{line}\n" for line in lines)
    path = names.path("txt", "md")
    prompt = names.phrase(
        (
            f"Replace the word {old} with {new} in {path}.",
            f"In {path}, the word {old} must become {new}.",
            f'Change "{old}" to "{new}" in the file {path}.',
            f"In the text {path}, write {new} instead of {old}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path}.")
        yield Step(f"I replace {old} with {new}.", (kit.edit(path, old, new),))
        yield Step(f"I replaced {old} with {new} in {path}.")

    files = {path: text}
    return Task(
        "replace_word",
        prompt,
        solve,
        expect_file(path, text.replace(old, new)),
        files | distractors(names, files, 2),
    )


def append_item(names: Names) -> Task:
    """Add an item at the end of a list."""
    items = [f"- {names.phrase_of_words()}" for _ in range(names.number(2, 5))]
    new = f"- {names.phrase_of_words()}"
    text = f"# {names.noun().title()}\n\n" + "".join(f"{item}\n" for item in items)
    path = names.path("md", "txt")
    prompt = names.phrase(
        (
            f'Add the line "{new}" at the end of {path}.',
            f"Append this line to {path}:\n\n{new}",
            f'The list in {path} needs one more item at its end: "{new}"',
            f"Please add a last line to the file {path}: {new}",
        )
    )
    if items[-1] in "\n".join(items[:-1]):
        return append_item(names)

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path}.")
        yield Step(
            "I add the line after the last one.",
            (kit.edit(path, items[-1], f"{items[-1]}\n{new}"),),
        )
        yield Step(f"I added the line at the end of {path}.")

    files = {path: text}
    return Task(
        "append_item",
        prompt,
        solve,
        expect_file(path, f"{text}{new}\n"),
        files | distractors(names, files, 2),
    )


def remove_line(names: Names) -> Task:
    """Remove a line of a list."""
    items = list(
        dict.fromkeys(f"{names.noun()} {names.number(1, 99)}" for _ in range(names.number(3, 6)))
    )
    at = names.number(0, len(items) - 1)
    gone, path = items[at], names.path("txt")
    text = "".join(f"{item}\n" for item in items)
    prompt = names.phrase(
        (
            f'Remove the line "{gone}" from {path}.',
            f"Delete the line {gone} in the file {path}.",
            f'The line "{gone}" must go from {path}. Keep the others.',
            f'In {path}, take out the line "{gone}".',
        )
    )

    def solve(kit: Kit) -> Solution:
        yield from read_steps(names, kit, path, f"I read {path}.")
        yield Step("I remove the line.", (kit.edit(path, f"{gone}\n", ""),))
        yield Step(f'I removed the line "{gone}" from {path}.')

    if text.count(f"{gone}\n") != 1:
        return remove_line(names)
    files = {path: text}
    expected = "".join(f"{item}\n" for item in items if item != gone)
    return Task(
        "remove_line",
        prompt,
        solve,
        expect_file(path, expected),
        files | distractors(names, files, 2),
    )


def copy_file(names: Names) -> Task:
    """Copy a file."""
    content, suffix = random_content(names)
    path, out = names.paths(2, suffix)
    prompt = names.phrase(
        (
            f"Copy {path} to {out}.",
            f"Make a copy of the file {path} and name it {out}.",
            f"I want the text of {path} in {out} as well.",
            f"Please copy the file {path}. The copy is {out}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        if kit.has_shell:
            folder = out.rpartition("/")[0]
            command = f"mkdir -p {folder} && cp {path} {out}" if folder else f"cp {path} {out}"
            yield Step(f"I copy {path} to {out}.", (kit.run(command),))
        else:
            yield from read_steps(names, kit, path, f"I read {path}.")
            yield Step(f"I write its text to {out}.", (kit.write(out, content),))
        yield Step(f"I copied {path} to {out}.")

    files = {path: content}
    return Task(
        "copy_file",
        prompt,
        solve,
        expect_file(out, content),
        files | distractors(names, files | {out: ""}, 2),
    )


def join_words(names: Names) -> Task:
    """Read several files in one turn and join their words."""
    count = names.number(2, 4)
    words, paths = names.nouns(count), names.paths(count, "txt")
    out = names.path("txt")
    sign, sign_name = names.choice(
        (("-", "hyphens"), (" ", "spaces"), (", ", "commas"), ("+", "plus signs"))
    )
    listed = f"{', '.join(paths[:-1])} and {paths[-1]}"
    joined = sign.join(words)
    prompt = names.phrase(
        (
            (
                f"Read {listed}, all in one go. Write their words in this order, with "
                f"{sign_name} between them, to {out}."
            ),
            (
                f"The files {listed} have one word each. Write the words in this order to "
                f"{out}, with {sign_name} between them."
            ),
            f"Join the words of {listed} with {sign_name} and write them to {out}.",
            (
                f"Each of {listed} has a word. Put the words, in this order and with "
                f"{sign_name} between them, into {out}."
            ),
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I read the {count} files together.", tuple(map(kit.read, paths)))
        yield Step(f"The words are {', '.join(words)}.", (kit.write(out, f"{joined}\n"),))
        yield Step(f"I wrote {joined} to {out}.")

    if out in paths:
        return join_words(names)
    files = {
        path: f"{word}\n" if names.chance(0.7) else word
        for path, word in zip(paths, words, strict=True)
    }
    return Task("join_words", prompt, solve, expect_file(out, joined), files)


def wrong_path(names: Names) -> Task:
    """Read a file that is not where the user expects it."""
    keys, values, text, suffix, _ = _random_settings(names)
    right = f"{names.choice(('config', 'etc', 'app', 'data', 'old'))}/{names.noun()}.{suffix}"
    path = right.rpartition("/")[2]
    if names.chance(0.4):
        path = f"{names.choice(('src', 'lib', 'docs'))}/{path}"
    at = names.number(0, len(keys) - 1)
    key, value = keys[at], values[at]
    prompt = names.phrase(
        (
            f"What is {key} in {path}?",
            f"Read {path} and tell me the value of {key}.",
            f"Which value has {key} in the file {path}?",
            f"Tell me what {path} says about {key}.",
        )
    )

    def solve(kit: Kit) -> Solution:
        yield Step(f"I read {path}.", (kit.read(path),))
        yield Step(f"There is no {path}. I list the files.", (kit.list(),))
        yield Step(f"The file is {right}.", (kit.read(right),))
        yield Step(f"{key} is set to {value} in {right}.")

    files = {right: text}
    return Task(
        "wrong_path",
        prompt,
        solve,
        expect_text(value),
        files | distractors(names, files | {path: ""}),
    )

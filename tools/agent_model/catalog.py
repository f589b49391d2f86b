"""Which tasks each harness gets, and how often."""

import random
from collections.abc import Callable, Mapping

import tasks_code as code
import tasks_files as files
from kit import Task
from names import Names

TaskFactory = Callable[[Names], Task]

_SHARED: Mapping[TaskFactory, int] = {
    files.create: 10,
    files.create_line: 5,
    files.read_value: 6,
    files.copy_value: 6,
    files.set_value: 10,
    files.set_in_section: 10,
    files.replace_word: 8,
    files.append_item: 8,
    files.remove_line: 6,
    files.copy_file: 6,
    files.join_words: 8,
    files.wrong_path: 6,
    code.find_definition: 8,
    code.find_text: 5,
    code.fix_bug: 16,
    code.write_function: 6,
    code.add_numbers: 10,
    code.list_folder: 3,
    code.greet: 1,
}
FACTORIES: Mapping[str, Mapping[TaskFactory, int]] = {
    "builtin": {**_SHARED, code.look_up_records: 10, code.place_order: 10},
    "pi": {**_SHARED, code.run_script: 6, code.write_and_run: 6, code.count_lines: 4},
}


def random_task(harness: str, rng: random.Random) -> Task:
    """Return a random task for training."""
    table = FACTORIES[harness]
    factory = rng.choices(list(table), weights=list(table.values()))[0]
    return factory(Names(rng))


def held_out_tasks(harness: str, count: int, seed: int) -> list[Task]:
    """Return tasks with reserved names, contents and phrasings, of all kinds in turn."""
    factories = [factory for factory in FACTORIES[harness] if factory is not code.greet]
    tasks = []
    for at in range(count):
        names = Names(random.Random(f"held out {harness} {seed} {at}"), held_out=True)
        tasks.append(factories[at % len(factories)](names))
    return tasks

"""Check the rules of the trace event format, as far as our timelines use it.

Complete events ("X") of a thread are nested or consecutive; flows ("s" to "f") have two ends, each
within a slice; counters ("C") are numbers; metadata ("M") names every process and thread.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
_TOP = {"traceEvents", "displayTimeUnit", "otherData"}
_FIELDS = {
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"ph", "name", "pid", "ts", "args"},
}
_METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def faults(document: Any) -> list[str]:
    """Return all violations of the format."""
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        return ["no object with a list of traceEvents"]
    events = document["traceEvents"]
    found = [f"strange key {key!r}" for key in document.keys() - _TOP]
    if document.get("displayTimeUnit") not in (None, "ms", "ns"):
        found.append("displayTimeUnit is neither ms nor ns")
    for at, event in enumerate(events):
        found += [f"event {at}: {fault}" for fault in _event(event)]
    return found or [*_names(events), *_nesting(events), *_flows(events)]


def _event(event: Any) -> Iterator[str]:
    if not isinstance(event, dict):
        yield "no object"
        return
    phase = event.get("ph")
    if phase == "M":
        yield from _metadata(event)
        return
    if phase not in _FIELDS:
        yield f"phase {phase!r}"
        return
    if set(event) != _FIELDS[phase]:
        yield f"fields {sorted(set(event) ^ _FIELDS[phase])}"
        return
    yield from _values(event)


def _values(event: Json) -> Iterator[str]:
    if not isinstance(event["name"], str) or not event["name"]:
        yield "no name"
    for field in ("pid", "tid", "id"):
        if field in event and (type(event[field]) is not int or event[field] < 1):
            yield f"{field} is no positive integer"
    # Perfetto puts all slices that start at the same moment into a slice without a length.
    for field, minimum in (("ts", 0), ("dur", 1)):
        if field in event and not (_is_time(event[field]) and event[field] >= minimum):
            yield f"{field} is no time"
    if "cat" in event and (not isinstance(event["cat"], str) or not event["cat"]):
        yield "no category"
    args = event.get("args", {})
    if not isinstance(args, dict) or not all(isinstance(key, str) for key in args):
        yield "args are no object"
    elif event["ph"] == "C" and (not args or not all(map(_is_time, args.values()))):
        yield "a counter of other things than numbers"
    if event.get("bp", "e") != "e":
        yield "a flow that binds to nothing"


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _metadata(event: Json) -> Iterator[str]:
    kind = event.get("name")
    if kind not in _METADATA:
        yield f"metadata {kind!r}"
        return
    key, of = _METADATA[kind]
    fields = {"ph", "name", "pid", "args"} | ({"tid"} if kind.startswith("thread") else set())
    args = event.get("args")
    if set(event) != fields or not isinstance(args, dict) or set(args) != {key}:
        yield f"the fields of {kind}"
    elif not isinstance(args[key], of) or args[key] == "":
        yield f"the value of {kind}"


def _names(events: list[Json]) -> Iterator[str]:
    """Every process and thread has one name, and a thread belongs to one process."""
    called: dict[str, list[Any]] = defaultdict(list)
    homes: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if event["ph"] == "M":
            called[event["name"]].append((event["pid"], event.get("tid")))
        if "tid" in event:
            homes[event["tid"]].add(event["pid"])
    yield from (f"{kind} is given twice" for kind, w in called.items() if len(set(w)) != len(w))
    for event in events:
        if (event["pid"], None) not in called["process_name"]:
            yield f"process {event['pid']} has no name"
        if "tid" in event and (event["pid"], event["tid"]) not in called["thread_name"]:
            yield f"thread {event['tid']} has no name"
    yield from (f"thread {one} is in several processes" for one, w in homes.items() if len(w) > 1)


def _threads(events: list[Json]) -> dict[tuple[int, int], list[tuple[float, float]]]:
    """Return the slices of each thread, outer before inner."""
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in threads.values():
        slices.sort(key=lambda one: (one[0], -one[1]))
    return threads


def _nesting(events: list[Json]) -> Iterator[str]:
    for thread, slices in _threads(events).items():
        around: list[float] = []
        for begin, end in slices:
            while around and around[-1] <= begin:
                around.pop()
            if around and end > around[-1]:
                yield f"slices of thread {thread} overlap in part at {begin}"
            around.append(end)


def _flows(events: list[Json]) -> Iterator[str]:
    threads = _threads(events)
    ends: dict[int, dict[str, list[Json]]] = defaultdict(lambda: {"s": [], "f": []})
    for event in events:
        if event["ph"] in ("s", "f"):
            ends[event["id"]][event["ph"]].append(event)
            slices = threads[event["pid"], event["tid"]]
            if not any(begin <= event["ts"] <= end for begin, end in slices):
                yield f"flow {event['id']} is bound to no slice"
    for flow, two in ends.items():
        if len(two["s"]) != 1 or len(two["f"]) != 1:
            yield f"flow {flow} has not two ends"
            continue
        (start,), (finish,) = two["s"], two["f"]
        if (start["name"], start["cat"]) != (finish["name"], finish["cat"]):
            yield f"flow {flow} changes its name"
        if finish["ts"] < start["ts"]:
            yield f"flow {flow} goes back in time"

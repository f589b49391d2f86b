"""Learned durations of tools: how long a session takes until it returns with the tool's result.

Durations differ by orders of magnitude between tools and, for shells, between commands. They are
kept per tool and first word of the command in histograms with logarithmic buckets. Old
observations decay, so that a tool that became slower is noticed after a few calls.
"""

import json
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate
from os.path import basename

#: Bucket limits grow by the square root of two, from 0.1 seconds to about 1.6 hours.
BUCKET_SECONDS = tuple(0.1 * 2 ** (number / 2) for number in range(32))
#: Each observation of a key reduces the weight of its earlier ones by this factor.
DECAY_PER_OBSERVATION = 0.95
#: The weight of an observation halves in this time.
HALF_LIFE_SECONDS = 6 * 3600.0
#: A command with less weight than this is estimated from all commands of its tool.
MIN_WEIGHT = 2.0
MAX_KEYS = 2048
MAX_WORD_LENGTH = 64
#: Arguments that hold the command line of tools that run commands.
COMMAND_ARGUMENTS = ("command", "cmd", "script", "code")

ToolTimeKey = tuple[str, str]


def tool_time_key(name: str, arguments: str | bytes) -> ToolTimeKey:
    """Return the key of a tool call: the tool and, if it runs a command, the command's name."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return (name[:MAX_WORD_LENGTH], "")
    if not isinstance(values, dict):
        return (name[:MAX_WORD_LENGTH], "")
    command = next((values[field] for field in COMMAND_ARGUMENTS if field in values), "")
    if isinstance(command, list):  # Codex sends ["bash", "-lc", "pytest -q"]
        command = next((one for one in reversed(command) if isinstance(one, str)), "")
    return (name[:MAX_WORD_LENGTH], _first_word(command) if isinstance(command, str) else "")


def _first_word(command: str) -> str:
    """Return the name of the program that a command line runs, without `cd` and variables."""
    for part in command[:1000].replace("&&", ";").replace("\n", ";").split(";"):
        words = [word for word in part.split() if "=" not in word.split("/")[0]]
        if words and words[0] not in ("cd", "export", "set", "source"):
            return basename(words[0])[:MAX_WORD_LENGTH]
    return ""


class _Histogram:
    __slots__ = ("updated", "weights")

    def __init__(self, now: float) -> None:
        self.weights = [0.0] * (len(BUCKET_SECONDS) + 1)
        self.updated = now

    def add(self, seconds: float, now: float) -> None:
        decay = DECAY_PER_OBSERVATION * self._decay(now)
        self.weights = [weight * decay for weight in self.weights]
        self.weights[bisect_left(BUCKET_SECONDS, seconds)] += 1.0
        self.updated = max(now, self.updated)

    def weight(self, now: float) -> float:
        return sum(self.weights) * self._decay(now)

    def quantile(self, q: float) -> float:
        """Return the upper limit of the bucket that contains the quantile."""
        sums = list(accumulate(self.weights))
        bucket = bisect_left(sums, q * sums[-1])
        return BUCKET_SECONDS[min(bucket, len(BUCKET_SECONDS) - 1)]

    def _decay(self, now: float) -> float:
        return float(0.5 ** (max(0.0, now - self.updated) / HALF_LIFE_SECONDS))


class ToolTimes:
    """Learns the durations of tools. Time is passed in as seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._histograms: OrderedDict[ToolTimeKey, _Histogram] = OrderedDict()

    def __len__(self) -> int:
        return len(self._histograms)

    def observe(self, keys: Sequence[ToolTimeKey], seconds: float, now: float) -> None:
        """Record the time from the end of a turn with these tool calls to the next turn.

        Of parallel calls the one that is expected to be the slowest determined the time. Calls of
        which nothing is known are recorded as well.
        """
        known = [(self._quantile(key, 0.5, now), key) for key in dict.fromkeys(keys)]
        slowest = max((expected for expected, _ in known if expected is not None), default=None)
        for expected, key in known:
            if expected is None or expected == slowest:
                for recorded in {key, (key[0], "")}:
                    self._histogram(recorded, now).add(max(0.0, seconds), now)

    def quantile(self, keys: Sequence[ToolTimeKey], q: float, now: float) -> float | None:
        """Return a quantile of the time until all calls have finished; None if it is not known.

        It is the quantile of the slowest call, rounded up to the next bucket limit.
        """
        found = [self._quantile(key, q, now) for key in keys]
        known = [seconds for seconds in found if seconds is not None]
        return max(known) if known and len(known) == len(found) else None

    def _quantile(self, key: ToolTimeKey, q: float, now: float) -> float | None:
        for candidate in (key, (key[0], "")):
            histogram = self._histograms.get(candidate)
            if histogram is not None and histogram.weight(now) >= MIN_WEIGHT:
                return histogram.quantile(q)
        return None

    def _histogram(self, key: ToolTimeKey, now: float) -> _Histogram:
        histogram = self._histograms.get(key)
        if histogram is None:
            histogram = self._histograms[key] = _Histogram(now)
            if len(self._histograms) > MAX_KEYS:
                self._histograms.popitem(last=False)
        self._histograms.move_to_end(key)
        return histogram

"""Normalize text without the quadratic time that `unicodedata` needs for long runs of marks.

Normalization sorts the combining marks that follow a character. The library does so by insertion,
which takes seconds for 30,000 marks and holds the GIL. Long runs are therefore sorted before.
"""

import re
import unicodedata
from functools import cache
from typing import Literal

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

_LONG_RUN_MARKS = 32  # shorter runs are cheap; natural text has runs of a few marks


def normalize(form: NormalForm, text: str) -> str:
    """Return the text in a normal form."""
    if unicodedata.is_normalized(form, text):
        return text
    return unicodedata.normalize(form, _long_runs().sub(_sort_marks, text))


def _sort_marks(run: re.Match[str]) -> str:
    """Sort marks by their combining class, as normalization does: the sort must be stable."""
    return "".join(sorted(run[0], key=unicodedata.combining))


@cache
def _long_runs() -> re.Pattern[str]:
    marks = [code for code in range(0x110000) if unicodedata.combining(chr(code))]
    starts = [code for code in marks if not unicodedata.combining(chr(code - 1))]
    ends = [code for code in marks if not unicodedata.combining(chr(code + 1))]
    ranges = (rf"\U{start:08x}-\U{end:08x}" for start, end in zip(starts, ends, strict=True))
    return re.compile(f"[{''.join(ranges)}]{{{_LONG_RUN_MARKS},}}")

"""What does it cost to prepare a turn of a long conversation, and does it grow with the length?"""

from benchmarks.prepare.inside import run

__all__ = ["run"]

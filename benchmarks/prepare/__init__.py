"""What does it cost to prepare a turn of a grown conversation, and does that grow with it?"""

from benchmarks.prepare.inside import run

__all__ = ["run"]

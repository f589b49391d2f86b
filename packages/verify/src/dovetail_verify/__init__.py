"""The contract of agent harnesses, and a suite that checks any server against it.

The interface is the command `dovetail-verify`; no names are exported.
"""

__all__: list[str] = []

"""What a token and a short turn cost, in counts: Python calls, system calls, wake-ups.

Counts hardly depend on the load of the machine, unlike times. Run `python -m benchmarks.counts`.
"""

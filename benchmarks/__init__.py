"""How fast the parsers are, one question to a file. `python -m benchmarks` asks them all."""

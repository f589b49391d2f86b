"""Speed of the parsers, one question per file. `python -m benchmarks` runs all of them."""

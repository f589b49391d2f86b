"""Earlier figures for comparison: published ones, and those of the engine alone.

The published figures are from a B200 with a prompt of 52,000 tokens, those of the engine alone from
one H200 with transformers' own paged sdpa attention and an 8B model with random weights.
"""

#: Time to first token in milliseconds.
TTFT = {"A": 168.0, "B": 912.0, "C": 169.0, "D": 167.0, "E": 322.0}
ALONE = {"A": 107.5, "B": 4828.0, "D": 110.5, "E": 170.0}

#: Milliseconds after the request, of the stream with two parsers.
TIMELINE = {
    "thinking starts": 82.0,
    "thinking block ends": 602.0,
    "dispatch": 800.0,
    "message ends": 814.0,
}

#: Tokens per second by concurrent streams: prompts of 1,000 tokens, outputs of 256.
DECODE = {1: 10.0, 8: 84.0, 64: 285.0}

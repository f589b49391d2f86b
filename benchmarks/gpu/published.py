"""Figures that were known before: of others, and of the bare engine. They stand beside ours.

The published ones were taken on a B200 with a prompt of 52,000 tokens, those of the engine alone on
one H200 with transformers' own paged sdpa attention and a random-weight 8B model.
"""

#: Milliseconds to the first token.
TTFT = {"A": 168.0, "B": 912.0, "C": 169.0, "D": 167.0, "E": 322.0}
ALONE = {"A": 107.5, "B": 4828.0, "D": 110.5, "E": 170.0}

#: Milliseconds after the request, of the stream with two parsers.
TIMELINE = {
    "thinking starts": 82.0,
    "thinking block ends": 602.0,
    "dispatch": 800.0,
    "message ends": 814.0,
}

#: Tokens a second by streams at once: prompts of 1,000 tokens, answers of 256.
DECODE = {1: 10.0, 8: 84.0, 64: 285.0}

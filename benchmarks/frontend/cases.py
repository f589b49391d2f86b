"""The workloads: the streamed output, the number of streams and their pace."""

from dataclasses import dataclass

from benchmarks.frontend.parts import Author, Part, call, interleaved, plain, reasoning_and_text
from benchmarks.frontend.requests import APIS
from benchmarks.prepare.over_http import SCRIPTED_STEP

PLAIN = 500  # tokens
SHORT = 20
LENGTHS = (1_000, 4_500, 20_000, 85_000)
MANY = 64  # paced streams
FOR_SCALE = 32  # streams of the workload that vLLM also runs
VLLM_SECONDS = 15
INSIDE = 4_500  # tokens of the call in paced streams
PACE = 50.0  # tokens per second, a typical decode speed
FAST = 200.0
LONG = 20_000  # tokens of plain text, for clients that read slowly
TIMED_SECONDS = 60  # of paced streams whose latency is measured
SLOW = 5.0  # tokens per second of each of thousands of streams
SLOW_TOKENS = 100
SLOW_TEXTS = 8
STEP = 20.0  # slow enough to distinguish tokens by their time
STEP_TOKENS = 120


@dataclass(frozen=True)
class Case:
    """Concurrent streams of a part. `seconds` is the duration; 0 runs streams to their ends."""

    title: str
    part: str
    streams: int
    seconds: int
    apis: tuple[str, ...] = APIS

    @property
    def name(self) -> str:
        return f"{self.part} x {self.streams}"


PACED = (
    Case("500 plain tokens, 64 streams at 50 tokens/s", "plain-paced", MANY, 8),
    Case("500 plain tokens, 64 streams in step, as a batch is decoded", "plain-steps", MANY, 8),
    Case("inside a call of 4.5k tokens, 64 streams at 50 tokens/s", "call-paced", MANY, 8),
    Case("inside a call of 4.5k tokens, 64 streams in step", "call-steps", MANY, 8),
    Case("inside a call of 4.5k tokens, 16 streams at 200 tokens/s", "call-fast", 16, 8),
)
SATURATED = (
    Case("500 plain tokens, 1 stream", "plain", 1, 3),
    Case("500 plain tokens, 32 streams", "plain", FOR_SCALE, 3),
    Case("500 plain tokens, 256 streams", "plain", 256, 4),
    Case("reasoning, then text, 32 streams", "thought", 32, 3),
    Case("reasoning, call, reasoning, call, text, 32 streams", "interleaved", 32, 3),
    Case("inside a call of 4.5k tokens, 32 streams", "call-4500", 32, 4),
    Case("inside a call of 4.5k tokens, 256 streams", "call-4500", 256, 4),
)
REMOTE = PACED[:1]  # an engine over HTTP, as a default run measures it
IN_STEP = tuple(case for case in PACED if case.part in ("plain-steps", "call-steps"))
TURNS = Case(f"short turns of {SHORT} tokens, 32 streams", "short", 32, 3)


def parts(author: Author) -> list[Part]:
    """Return the parts of all workloads."""
    words = author.first_tokens(PLAIN, plain(8))
    inside = author.sized(INSIDE, call)
    long = author.first_tokens(LONG, plain(200))
    found = [
        Part("plain", words),
        Part("plain-paced", words, PACE),
        Part("plain-steps", words, PACE, in_step=True),
        Part("long", long),
        Part("long-paced", long, PACE),
        Part("short", author.first_tokens(SHORT, words)),
        Part("thought", author.sized(PLAIN, reasoning_and_text)),
        Part("interleaved", author.sized(2 * PLAIN, interleaved)),
        Part("call-paced", inside, PACE),
        Part("call-steps", inside, PACE, in_step=True),
        Part("call-fast", inside, FAST),
        Part("call-step", author.sized(STEP_TOKENS, call), STEP),
        SCRIPTED_STEP,
    ]
    found += [Part(f"call-{length}", author.sized(length, call)) for length in LENGTHS]
    slow = [author.first_tokens(SLOW_TOKENS, words[50 * number :]) for number in range(SLOW_TEXTS)]
    return [*found, *(Part(f"slow-{at}", text, SLOW) for at, text in enumerate(slow))]

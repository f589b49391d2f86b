"""How long does a text take to tokenize: with the `tokenizers` library, and with our word cache?

`python -m benchmarks.decisions.pre_tokenizer`, with Qwen3's vocabulary, on the text of this
repository's documentation. *Cold*: the tokenizer was just loaded and its caches are empty. *New
text*: the words are cached, but not this text. *Known text*: the text was tokenized before.
"""

import time
from collections.abc import Callable

from benchmarks.measure import quiet
from benchmarks.report import ROOT
from dovetail_tokenizers.hf import HfTokenizer

DEFINITION = ROOT / ".cache" / "tokenizers" / "qwen3" / "tokenizer.json"
ROUNDS = 5


def best_ms(prepare: Callable[[], Callable[[], object]]) -> float:
    """Return the milliseconds of CPU time, the best of several rounds with separate setup."""
    found = float("inf")
    for _ in range(ROUNDS):
        run = prepare()
        with quiet():
            begun = time.process_time_ns()
            run()
            found = min(found, (time.process_time_ns() - begun) / 1e6)
    return found


def main() -> None:
    import tokenizers

    if not DEFINITION.is_file():
        raise SystemExit("the tokenizer of Qwen3 is missing: run `make tokenizers`")
    library = tokenizers.Tokenizer.from_file(str(DEFINITION))
    files = sorted((ROOT / "docs").rglob("*.md"))
    # Without the names of control tokens, which the library would encode as control tokens.
    pages = [path.read_text("utf-8").replace("<", "(") for path in files]
    text, other = "\n".join(pages), "\n".join(reversed(pages))
    count = len(library.encode(text).ids)
    warm = HfTokenizer.from_file(DEFINITION)
    warm.encode_plain(other)
    assert warm.encode_plain(text) == library.encode(text).ids

    def cold() -> Callable[[], object]:
        fresh = HfTokenizer.from_file(DEFINITION)
        return lambda: fresh.encode_plain(text)

    def new_text() -> Callable[[], object]:
        """Encode a text whose words are cached but whose pieces are not."""
        fresh = HfTokenizer.from_file(DEFINITION)
        fresh.encode_plain("\n".join(line + " " for line in text.split("\n")))
        return lambda: fresh.encode_plain(text)

    found = {
        "library": best_ms(lambda: lambda: library.encode_batch_fast([text])),
        "cold": best_ms(cold),
        "new text": best_ms(new_text),
        "known text": best_ms(lambda: lambda: warm.encode_plain(text)),
    }
    print(f"{len(text)} characters, {count} tokens")
    for name, ms in found.items():
        print(f"{name:>12}: {ms:8.2f} ms, {ms / found['library']:6.3f} of the library")


if __name__ == "__main__":
    main()

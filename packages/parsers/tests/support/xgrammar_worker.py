"""xgrammar in its own process, since it needs torch: one JSON request per line, one response.

Run by the interpreter that has xgrammar; see `grammar_matchers.py`.
"""

import base64
import json
import sys
from typing import Any

import numpy
import xgrammar  # type: ignore[import-not-found]


class Worker:
    def __init__(self) -> None:
        self._compilers: dict[str, Any] = {}
        self._compiled: dict[tuple[str, str, str], Any] = {}
        self._matcher: Any = None
        self._bits: Any = None

    def vocabulary(self, name: str, spellings: list[str], end: int) -> None:
        tokens = [spelling.encode("latin-1") for spelling in spellings]
        facts = xgrammar.TokenizerInfo(tokens, stop_token_ids=[end])
        self._compilers[name] = xgrammar.GrammarCompiler(facts, max_threads=2)

    def begin(self, name: str, syntax: str, text: str) -> None:
        """Start a new matcher. It replaces the previous one."""
        key = (name, syntax, text)
        if key not in self._compiled:
            compiler = self._compilers[name]
            is_tag = syntax == "structural_tag"
            compile = compiler.compile_structural_tag if is_tag else compiler.compile_grammar
            self._compiled[key] = compile(text)
        self._matcher = xgrammar.GrammarMatcher(self._compiled[key])
        size = self._compiled[key].tokenizer_info.vocab_size
        self._bits = numpy.zeros((1, (size + 31) // 32), dtype=numpy.int32)

    def allowed(self) -> str:
        self._bits.fill(-1)
        self._matcher.fill_next_token_bitmask(self._bits)
        return base64.b64encode(self._bits.tobytes()).decode()

    def take(self, ids: list[int]) -> int:
        """Consume tokens, and return how many of them were allowed."""
        for number, id in enumerate(ids):
            if self._matcher.is_terminated() or not self._matcher.accept_token(id):
                return number
        return len(ids)

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())


def main() -> None:
    worker = Worker()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            response = [getattr(worker, name)(*arguments)]
        except Exception as error:  # the test reports any error
            response = [None, str(error)]
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()

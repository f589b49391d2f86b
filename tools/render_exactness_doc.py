"""Write docs/exactness.md from the matrix that the test measures."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "packages" / "dovetail" / "tests" / "support"))

from exactness_matrix import measure  # noqa: E402
from exactness_page import page  # noqa: E402
from long_session import LONG_PAIR, figures  # noqa: E402
from real_models import PAIRS, available  # noqa: E402


def main() -> int:
    missing = [pair.name for pair in PAIRS if pair not in available()]
    if missing:
        print(f"missing: {', '.join(missing)}; the document is not changed", file=sys.stderr)
        return 1
    text = page([measure(pair) for pair in PAIRS], figures(LONG_PAIR))
    (ROOT / "docs" / "exactness.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

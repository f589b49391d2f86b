"""One client cannot starve the others: real servers, in small forms of the attacks."""

import pytest
from starvation import LARGE_BODIES, few_open_files, large_bodies


def test_shortage_of_files_fails_no_stream() -> None:
    """Refused clients can retry, and the healthy engine is not marked as down."""
    result = few_open_files()
    assert result.passed, result.figures


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE_BODIES)
def test_large_bodies_do_not_pause_streams(name: str) -> None:
    result = large_bodies(name)
    assert result.passed, result.figures

"""One client cannot starve the others: real servers, in small forms of the attacks."""

import pytest
from starvation import few_open_files, large_bodies


def test_shortage_of_files_fails_no_stream() -> None:
    """Refused clients can retry, and the healthy engine is not marked as down."""
    result = few_open_files()
    assert result.passed, result.figures


@pytest.mark.long
def test_large_bodies_do_not_pause_streams() -> None:
    assert not [result for result in large_bodies() if not result.passed]

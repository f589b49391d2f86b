"""Convert lines to numbers."""

import logging

logger = logging.getLogger(__name__)


def to_numbers(lines):
    numbers = []
    for line in lines:
        try:
            numbers.append(float(line))
        except ValueError:
            logger.warning("not a number: %s", line)
    logger.info("converted %d of %d lines", len(numbers), len(lines))
    return numbers

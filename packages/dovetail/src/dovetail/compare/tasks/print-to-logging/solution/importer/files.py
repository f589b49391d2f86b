"""Read files."""

import logging

logger = logging.getLogger(__name__)


def read_lines(path):
    logger.info("reading %s", path)
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        logger.error("%s does not exist", path)
        return []
    if not lines:
        logger.warning("%s is empty", path)
    return lines

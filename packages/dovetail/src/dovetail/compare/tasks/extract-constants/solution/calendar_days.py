"""Days since the epoch."""

from units import SECONDS_PER_DAY, SECONDS_PER_HOUR


def day_number(timestamp):
    return timestamp // SECONDS_PER_DAY


def hour_of_day(timestamp):
    return timestamp % SECONDS_PER_DAY // SECONDS_PER_HOUR

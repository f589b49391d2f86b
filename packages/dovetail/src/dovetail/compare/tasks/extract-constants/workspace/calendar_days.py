"""Days since the epoch."""


def day_number(timestamp):
    return timestamp // (24 * 60 * 60)


def hour_of_day(timestamp):
    return timestamp % 86_400 // (60 * 60)

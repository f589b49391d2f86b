"""Ages in years."""


def age(born, today):
    if born > today:
        raise ValueError(f"{born} is after {today}")
    return today.year - born.year - ((today.month, today.day) < (born.month, born.day))

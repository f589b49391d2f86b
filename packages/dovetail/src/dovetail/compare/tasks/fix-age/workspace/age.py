"""Ages in years."""


def age(born, today):
    return (today - born).days // 365

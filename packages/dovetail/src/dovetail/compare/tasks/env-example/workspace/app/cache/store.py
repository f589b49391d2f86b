import os


def url():
    return os.environ["CACHE_URL"]

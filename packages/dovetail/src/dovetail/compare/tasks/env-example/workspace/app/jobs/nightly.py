from os import environ, getenv

ZONE = getenv("TZ_NAME", "UTC")
KEY = environ["API_KEY"]

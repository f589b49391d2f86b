import os

# OLD_TOKEN was used until 2024.
SENDER = os.getenv("MAIL_SENDER")
RETRIES = int(os.environ.get(
    "MAIL_RETRIES",
    "3",
))

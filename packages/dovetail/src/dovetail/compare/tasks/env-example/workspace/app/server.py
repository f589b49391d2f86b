import os

PORT = int(os.environ.get("PORT", "8000"))
HOST = os.getenv("HOST", "127.0.0.1")

"""URLs of Redis stores. This module does not need the library, which is an extra."""

REDIS_SCHEMES = ("redis://", "rediss://", "unix://", "redis+cluster://", "rediss+cluster://")

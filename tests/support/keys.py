"""Idempotency keys, as clients make them."""

import secrets
import time
from uuid import UUID

HEADER = "Idempotency-Key"


def new_key() -> str:
    """A UUID of version 7 (RFC 9562)."""
    milliseconds = time.time_ns() // 1_000_000
    return str(UUID(int=milliseconds << 80 | 7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)))

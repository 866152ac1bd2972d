"""Sortable, prefixed ids made by the client of the store, so that a write of unknown outcome can be repeated."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(prefix: str) -> str:
    """`prefix_` and 26 characters: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return f"{prefix}_" + "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))

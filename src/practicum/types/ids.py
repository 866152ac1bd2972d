"""Sortable, prefixed ids made by the client of the store, so that a write of unknown outcome can be repeated."""

from __future__ import annotations

import os
import random
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = [high + low for high in _ALPHABET for low in _ALPHABET]
_SHIFTS = range(120, -1, -10)
# A generator of our own, which nobody else seeds. Ids are unique, not secret.
_chance = random.Random()
os.register_at_fork(after_in_child=_chance.seed)


def new_id(prefix: str) -> str:
    """`prefix_` and 26 characters: 48 bits of milliseconds, then 80 random bits, in Crockford's base 32."""
    value = (time.time_ns() // 1_000_000) << 80 | _chance.getrandbits(80)
    return f"{prefix}_" + "".join([_PAIRS[(value >> shift) & 1023] for shift in _SHIFTS])

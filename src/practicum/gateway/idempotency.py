"""A request that is sent again with the same `Idempotency-Key` gets the same answer and makes no second record.

The call's id is made of the principal and the key, so the store itself is the memory. An answer that was not delivered
whole does not count: the next attempt samples anew, under an id of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from practicum.errors import Conflict
from practicum.types.calls import ModelCall

HEADER = "idempotency-key"
_MOST_ATTEMPTS = 100


class CallById(Protocol):
    """What is read of a store."""

    def get_call(self, call_id: str) -> ModelCall | None:
        """The call with this id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The id for a keyed request, and the call to replay where its answer exists."""

    call_id: str
    answered: ModelCall | None


def find_slot(
    store: CallById, principal: str, key: str, body: dict[str, Any], dialect: str, in_url: Sequence[str] = ()
) -> Slot:
    """Raises Conflict when the key was used for another request, or while the first one is being answered.

    `in_url` is what a dialect says in the URL instead of the body (Gemini's model and method). It is not on record, so
    a key counts for each apart.
    """
    for attempt in range(_MOST_ATTEMPTS):
        parts = "\0".join((principal, key, str(attempt), *in_url))
        digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        call_id = f"call_{digest[:26]}"
        call = store.get_call(call_id)
        if call is None:
            return Slot(call_id=call_id, answered=None)
        if (call.dialect, call.request) != (dialect, body):
            raise Conflict("This idempotency key was used for another request.", param=HEADER, code="key_reused")
        if call.status == "open":
            raise _in_progress()
        if call.status == "complete":
            return Slot(call_id=call_id, answered=call)
    raise Conflict(f"The request failed {_MOST_ATTEMPTS} times under this idempotency key.", param=HEADER)


class InProgress:
    """Principals' keys being answered in this process: equal requests at one moment find no record of each other."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str]] = set()

    @contextmanager
    def hold(self, key: tuple[str, str]) -> Iterator[None]:
        """Around the look-up and the answer. Raises Conflict while another holds the key."""
        if key in self._held:
            raise _in_progress()
        self._held.add(key)
        try:
            yield
        finally:
            self._held.discard(key)


def _in_progress() -> Conflict:
    return Conflict("The first request with this idempotency key is being answered.", param=HEADER, code="in_progress")

"""One learner at a time: a lease in the store that a background thread renews while the run works."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from practicum.errors import Conflict
from practicum.store import Store

TTL_S = 60.0


class Lease:
    """Hold `name` for `owner` while the context lasts. Raises Conflict if somebody else holds it.

    A holder that dies lets go after `TTL_S`; a holder that was paused past that finds its renewal refused, and what
    it writes afterwards is idempotent by run and step.
    """

    def __init__(self, store: Store, name: str, owner: str) -> None:
        self._store = store
        self._name = name
        self._owner = owner
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{name}", daemon=True)

    def __enter__(self) -> Self:
        token = self._store.acquire_lease(self._name, self._owner, TTL_S).result()
        if token is None:
            raise Conflict(
                "Another learner is at work on this store.",
                hint=f"Wait for it, or up to {TTL_S:.0f} s if its process was killed.",
            )
        self._token = token
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._store.release_lease(self._name, self._token).result()

    def _renew(self) -> None:
        while not self._stop.wait(TTL_S / 3):
            self._store.renew_lease(self._name, self._token, TTL_S).result()

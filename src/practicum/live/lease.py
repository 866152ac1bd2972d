"""One learner at a time: a lease in the store that a background thread renews while the run works.

Writes carry the lease, so a learner that slept through its expiry, while another took over, changes nothing more.
"""

from __future__ import annotations

import os
import socket
import threading
from types import TracebackType

from practicum.errors import Conflict
from practicum.store import Store
from practicum.types.runs import Lease

TTL_S = 60.0


class Held:
    """Hold `name` while the context lasts. Entering raises Conflict where another learner holds it.

    A holder on this machine whose process is gone is succeeded at once; any other, once its lease has run out.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease-{name}", daemon=True)

    def __enter__(self) -> Lease:
        owner = f"{socket.gethostname()}:{os.getpid()}"
        last = self._store.lease(self._name)
        if last is not None and _is_dead(last.owner):
            owner = last.owner
        lease = self._store.acquire_lease(self._name, owner, TTL_S).result()
        if lease is None:
            raise Conflict(
                f"Another learner ({last.owner if last else 'unknown'}) is at work on this store.",
                hint=f"Wait for it to finish; if its machine died, for {TTL_S:.0f} s at most.",
            )
        self._lease = lease
        self._thread.start()
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._store.release_lease(self._lease).result()

    def _renew(self) -> None:
        while not self._stop.wait(TTL_S / 3):
            if self._store.renew_lease(self._lease, TTL_S).result() is None:
                return  # another has taken over: the fence on the next write ends this run


def _is_dead(owner: str) -> bool:
    """Whether `owner` is `host:pid` of this machine and no such process exists."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False

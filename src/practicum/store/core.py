"""What every part of the store stands on: the writer thread, a read connection per thread, and the counters.

It must not know tables; `Store` gives it the verbs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from practicum.store import connections
from practicum.store.writer import PutAll, Writer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHealth:
    """How the store is doing. `lost_jobs` and `refused_jobs` count writes that failed; alarm when they move."""

    queue_length: int
    commits: int
    failed_jobs: int
    failed_commits: int
    lost_jobs: int
    refused_jobs: int
    last_error: str | None


class Core:
    """One open store file. `crashpoint` is for tests: called with the name of each point that the writer passes."""

    def __init__(self, path: Path, *, vfs: str, capacity: int, crashpoint: Callable[[str], None] | None) -> None:
        self.path = path
        self.crashpoint = crashpoint
        self._vfs = vfs
        self._local = threading.local()
        self._writer = Writer(
            lambda: connections.open_writer(path, vfs), capacity=capacity, crashpoint=self._pass_crashpoint
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Write what is queued and let go of the file. Idempotent."""
        self._writer.close()
        self._local = threading.local()

    def health(self) -> StoreHealth:
        """Counters since this process opened the store."""
        counters = self._writer.counters
        return StoreHealth(
            queue_length=self._writer.queue_length,
            commits=counters.commits,
            failed_jobs=counters.failed_jobs,
            failed_commits=counters.failed_commits,
            lost_jobs=counters.lost_jobs,
            refused_jobs=counters.refused_jobs,
            last_error=counters.last_error,
        )

    def _write(self, job: Callable[[Any], T], committed: Callable[[], None] | None = None) -> Future[T]:
        return self._writer.submit(job, committed)

    def _write_record(self, put_all: PutAll, record: Any) -> Future[None]:
        return self._writer.submit_record(put_all, record)

    def _read(self, query: Callable[[Any], T]) -> T:
        try:
            connection = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = connections.open_reader(self.path, self._vfs)
            return query(connection)
        except connections.FILE_ERRORS as error:
            raise connections.store_error(error) from error

    def _pass_crashpoint(self, name: str) -> None:
        if self.crashpoint is not None:
            self.crashpoint(name)

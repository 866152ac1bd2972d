"""The one writer thread of a process, with group commit.

Jobs queue up while a commit waits for the disk; the thread then takes what has gathered, runs every job in a savepoint
of its own inside one BEGIN IMMEDIATE ... COMMIT, and resolves the futures. So one fsync serves many calls.

Invariants:
- A future resolves only after COMMIT returned; a job that raises is undone alone and gets its own exception.
- A COMMIT that errors may still be on disk. The batch is run again, so every job must be one that may run twice:
  rows are keyed by ids that the caller made.
- An accepted job runs even if its caller has gone: futures cannot be cancelled.
- The queue is bounded. A job that finds it full is refused with StoreError, and counted.

It must not know tables.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import apsw

from practicum.errors import StoreError
from practicum.store.connections import FILE_ERRORS, store_error

T = TypeVar("T")
Job = Callable[[Any], T]

MAX_BATCH = 256
_RETRY_DELAYS_S = (0.02, 0.1)


@dataclass(slots=True)
class WriterCounters:
    """What was lost or nearly lost since the start."""

    commits: int = 0
    jobs: int = 0
    failed_jobs: int = 0
    failed_commits: int = 0
    lost_jobs: int = 0
    refused_jobs: int = 0
    last_error: str | None = None


@dataclass(slots=True)
class _Entry:
    job: Job[Any]
    future: Future[Any]
    result: Any = None
    error: Exception | None = None


class Writer:
    """Runs jobs, each a function of the connection, in order, durably."""

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        capacity: int,
        crashpoint: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._crashpoint = crashpoint
        self._queue: queue.Queue[_Entry | None] = queue.Queue()
        self._capacity = capacity
        self._lock = threading.Lock()
        self._closed = False
        self._connection: Any = connect()
        self.counters = WriterCounters()
        self._thread = threading.Thread(target=self._run, name="practicum-store-writer", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """Jobs that wait."""
        return self._queue.qsize()

    def submit(self, job: Job[T]) -> Future[T]:
        """Queue a job. The future fails with StoreError where it could not be made durable."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                future.set_exception(StoreError("The store is closed."))
            elif self._queue.qsize() >= self._capacity:
                self.counters.refused_jobs += 1
                future.set_exception(
                    StoreError(f"{self._capacity} writes are waiting for the disk already.", hint="Try again later.")
                )
            else:
                self._queue.put(_Entry(job, future))
        return future

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while batch := self._take():
            self._write(batch)
        self._disconnect()

    def _take(self) -> list[_Entry]:
        batch: list[_Entry] = []
        entry = self._queue.get()
        while entry is not None:
            batch.append(entry)
            if len(batch) == MAX_BATCH:
                return batch
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch
        if batch:
            self._queue.put(None)
        return batch

    def _write(self, batch: list[_Entry]) -> None:
        error = self._write_with_retries(batch, _RETRY_DELAYS_S)
        if error is not None and len(batch) > 1 and not isinstance(error, apsw.BusyError):
            for entry in batch:
                self._resolve([entry], self._write_with_retries([entry], ()))
        else:
            self._resolve(batch, error)

    def _write_with_retries(self, batch: list[_Entry], delays_s: tuple[float, ...]) -> Exception | None:
        for delay_s in (*delays_s, None):
            try:
                self._transact(batch)
            except FILE_ERRORS as error:
                self.counters.failed_commits += 1
                self.counters.last_error = f"{type(error).__name__}: {error}"
                self._disconnect()
                if delay_s is None or isinstance(error, apsw.BusyError):  # SQLite has waited long enough
                    return error
                time.sleep(delay_s)
            except Exception as error:
                self.counters.failed_commits += 1
                self.counters.last_error = f"{type(error).__name__}: {error}"
                self._disconnect()
                return error
            else:
                self.counters.commits += 1
                return None
        raise AssertionError("unreachable: the last delay is None")

    def _transact(self, batch: list[_Entry]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        for entry in batch:
            connection.execute("SAVEPOINT job")
            entry.error = None
            try:
                entry.result = entry.job(connection)
            except FILE_ERRORS:
                raise
            except Exception as error:
                if not connection.in_transaction:
                    raise apsw.IOError("SQLite gave the transaction up") from error
                entry.error = error
                connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
        self._crashpoint("before_commit")
        connection.execute("COMMIT")
        self._crashpoint("after_commit")

    def _resolve(self, batch: list[_Entry], error: Exception | None) -> None:
        for entry in batch:
            self.counters.jobs += 1
            if error is not None:
                self.counters.lost_jobs += 1
                entry.future.set_exception(store_error(error) if isinstance(error, FILE_ERRORS) else error)
            elif entry.error is not None:
                self.counters.failed_jobs += 1
                entry.future.set_exception(entry.error)
            else:
                entry.future.set_result(entry.result)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close(True)
            except apsw.Error as error:
                self.counters.last_error = f"{type(error).__name__}: {error}"

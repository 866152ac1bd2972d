"""The one writer thread of a process, with group commit.

Jobs queue up while a commit waits for the disk; the thread then takes what has gathered, runs every job in a savepoint
of its own inside one BEGIN IMMEDIATE ... COMMIT, and resolves the futures. So one fsync serves many calls. Records that
follow each other and go the same way are handed over together: each statement lets go of the interpreter's lock and may
wait for it again, so a statement for many records costs a busy server far less than one for each.

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
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import apsw

from practicum.errors import StoreError
from practicum.store.connections import FILE_ERRORS, store_error

T = TypeVar("T")
Job = Callable[[Any], T]
# Writes a list of records. Module-level functions: those that are equal are put together.
PutAll = Callable[[Any, list[Any]], None]

MAX_BATCH = 256
# Behind a batch of so many, the next one is given a moment to gather: it makes few large commits out of many small
# ones where that saves time, and a lone writer never waits.
CROWD = 8
GATHER_S = 0.001
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
    """A job, or a record and what puts it."""

    future: Future[Any]
    job: Job[Any] | None = None
    put_all: PutAll | None = None
    record: Any = None
    committed: Callable[[], None] | None = None
    result: Any = None
    error: Exception | None = None

    def run(self, connection: Any) -> None:
        if self.put_all is not None:
            self.put_all(connection, [self.record])
        elif self.job is not None:
            self.result = self.job(connection)


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
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._capacity = capacity
        self._lock = threading.Lock()
        self._closed = False
        self._crowded = False
        self._connection: Any = connect()
        self.counters = WriterCounters()
        self._thread = threading.Thread(target=self._run, name="practicum-store-writer", daemon=True)
        self._thread.start()

    @property
    def queue_length(self) -> int:
        """Jobs that wait."""
        return self._queue.qsize()

    def submit(self, job: Job[T], committed: Callable[[], None] | None = None) -> Future[T]:
        """Queue a job. The future fails with StoreError where it could not be made durable.

        `committed` is called on the writer's thread once the job is durable, before the future resolves.
        """
        return self._queued(_Entry(future=Future(), job=job, committed=committed))

    def submit_record(self, put_all: PutAll, record: Any) -> Future[None]:
        """Queue a record that `put_all` writes, together with its neighbours in the queue that go the same way."""
        return self._queued(_Entry(future=Future(), put_all=put_all, record=record))

    def _queued(self, entry: _Entry) -> Future[Any]:
        future = entry.future
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
                self._queue.put(entry)
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
            self._crowded = len(batch) >= CROWD
            self._write(batch)
        self._disconnect()

    def _take(self) -> list[_Entry]:
        batch: list[_Entry] = []
        entry = self._queue.get()
        if self._crowded:
            time.sleep(GATHER_S)
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
        for entry in batch:  # of an earlier try, which was undone
            entry.error = None
        for put_all, group in groupby(batch, lambda entry: entry.put_all):
            entries = list(group)
            if put_all is not None and len(entries) > 1:
                records = [entry.record for entry in entries]
                if _tried(connection, partial(put_all, connection, records)) is None:
                    continue
            for entry in entries:
                entry.error = _tried(connection, partial(entry.run, connection))
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
                if entry.committed is not None:
                    entry.committed()
                entry.future.set_result(entry.result)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close(True)
            except apsw.Error as error:
                self.counters.last_error = f"{type(error).__name__}: {error}"


def _tried(connection: Any, work: Callable[[], None]) -> Exception | None:
    """Run `work` in a savepoint. What it raises undoes it and is returned; errors of the file are raised."""
    connection.execute("SAVEPOINT job")
    failure = None
    try:
        work()
    except FILE_ERRORS:
        raise
    except Exception as error:
        if not connection.in_transaction:
            raise apsw.IOError("SQLite gave the transaction up") from error
        failure = error
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")
    return failure

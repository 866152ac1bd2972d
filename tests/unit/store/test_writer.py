"""Group commit: what a future promises, and what happens when a job, a commit or the disk fails."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from practicum.errors import Conflict, StoreError
from practicum.store import open_store
from practicum.store.writer import MAX_BATCH
from practicum.types.calls import ModelCall


class FaultyDisk(apsw.VFS):
    """A file system that fails where it is told to, and counts syncs by the file's kind."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "")
        self.name = name
        self.fail_writes = 0
        self.fail_syncs = 0
        self.wal_syncs = 0

    def xOpen(self, name: Any, flags: list[int]) -> "FaultyFile":
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._is_wal = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xWrite(self, data: bytes, offset: int) -> None:
        if self._disk.fail_writes:
            self._disk.fail_writes -= 1
            raise apsw.FullError("no space left")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.wal_syncs += self._is_wal
        if self._disk.fail_syncs and self._is_wal:
            self._disk.fail_syncs -= 1
            raise apsw.IOError("the disk did not answer")


@pytest.fixture
def disk(request: pytest.FixtureRequest) -> Iterator[FaultyDisk]:
    made = FaultyDisk(f"faulty-{request.node.name}")
    yield made
    made.unregister()


class Gate:
    """Holds the writer at a crash point until it is opened."""

    def __init__(self, point: str) -> None:
        self.point = point
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, name: str) -> None:
        if name == self.point and not self.open.is_set():
            self.reached.set()
            assert self.open.wait(30)


def make_call(call_id: str) -> ModelCall:
    return ModelCall(
        call_id=call_id,
        session_id="s",
        principal="p",
        kind="agent",
        status="complete",
        created_at=1.0,
        policy_version=0,
        model="m",
        request={},
    )


def test_writers_are_in_wal_mode_with_full_sync(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db") as store:

        def pragmas(connection: Any) -> tuple[Any, ...]:
            return tuple(connection.pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys"))

        assert store._write(pragmas).result() == ("wal", 2, 1)


def test_g2_every_commit_syncs_the_log(tmp_path: Path, disk: FaultyDisk) -> None:
    with open_store(tmp_path / "practicum.db", vfs=disk.name) as store:
        for number in range(20):
            before = disk.wal_syncs
            store.put_call(make_call(str(number))).result()
            assert disk.wal_syncs > before


def test_a_future_resolves_only_after_the_commit(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        future = store.put_call(make_call("a"))
        assert gate.reached.wait(30)
        assert not future.done()
        assert store.get_call("a") is None
        gate.open.set()
        future.result()
        assert store.get_call("a") is not None


def test_what_gathers_during_a_commit_is_one_commit(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        futures = [store.put_call(make_call("first"))]
        assert gate.reached.wait(30)
        futures += [store.put_call(make_call(str(number))) for number in range(MAX_BATCH)]
        assert store.health().queue_length == MAX_BATCH
        gate.open.set()
        wait(futures)
        assert store.count_calls() == MAX_BATCH + 1
        assert store.health().commits == 2


def test_a_poison_record_fails_alone_among_those_written_together(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        first = store.put_call(make_call("first"))
        assert gate.reached.wait(30)
        good = [store.put_call(make_call(f"good {number}")) for number in range(100)]
        bad = store.put_call(replace(make_call("bad"), prompt_ids=(-1,)))
        more = [store.put_call(make_call(f"more {number}")) for number in range(30)]
        gate.open.set()
        for future in (first, *good, *more):
            future.result()
        with pytest.raises(OverflowError):
            bad.result()
        assert store.count_calls() == 131 and store.get_call("bad") is None
        assert store.health().failed_jobs == 1 and store.health().commits == 2


def test_records_of_one_call_that_wait_together_leave_the_one_that_would_stand(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        store.put_call(make_call("first"))
        assert gate.reached.wait(30)
        order = [("a", "open"), ("b", "open"), ("b", "complete"), ("a", "failed"), ("a", "open"), ("b", "interrupted")]
        futures = [store.put_call(replace(make_call(name), status=status)) for name, status in order]
        gate.open.set()
        wait(futures)
        assert [(call.call_id, call.status) for call in store.calls()][1:] == [("a", "failed"), ("b", "complete")]


def test_a_poison_job_fails_alone(tmp_path: Path) -> None:
    def poison(connection: Any) -> None:
        connection.execute("DELETE FROM calls")
        raise Conflict("poison")

    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        first = store.put_call(make_call("first"))
        assert gate.reached.wait(30)
        before, bad, after = store.put_call(make_call("a")), store._write(poison), store.put_call(make_call("b"))
        gate.open.set()
        for future in (first, before, after):
            future.result()
        with pytest.raises(Conflict, match="poison"):
            bad.result()
        assert [call.call_id for call in store.calls()] == ["first", "a", "b"]
        assert store.health().failed_jobs == 1
        assert store.health().commits == 2


def test_a_commit_of_unknown_outcome_is_repeated_without_duplicates(tmp_path: Path, disk: FaultyDisk) -> None:
    with open_store(tmp_path / "practicum.db", vfs=disk.name) as store:
        store.put_call(make_call("a")).result()
        disk.fail_syncs = 1
        store.put_call(make_call("b")).result()
        assert [call.call_id for call in store.calls()] == ["a", "b"]
        assert store.health().failed_commits == 1
        assert store.health().lost_jobs == 0


def test_an_error_of_a_try_that_was_undone_is_not_the_last_word(tmp_path: Path, disk: FaultyDisk) -> None:
    gate = Gate("before_commit")
    tries: list[list[int]] = []

    def put_all(connection: Any, records: list[int]) -> None:
        tries.append(records)
        if len(tries) <= 3:  # together and each alone, before the commit that fails
            raise ValueError("not yet")

    def at(name: str) -> None:
        gate(name)
        if name == "after_commit" and not tries:
            disk.fail_syncs = 1

    with open_store(tmp_path / "practicum.db", vfs=disk.name) as store:
        store.crashpoint = at
        first = store.put_call(make_call("first"))
        assert gate.reached.wait(30)
        written = store.put_call(make_call("written"))
        records = [store._write_record(put_all, number) for number in (1, 2)]
        gate.open.set()
        wait([first, written, *records])
        assert [future.exception() for future in records] == [None, None]
        assert tries == [[1, 2], [1], [2], [1, 2]] and store.health().failed_commits == 1


def test_g3_a_full_disk_is_a_503_and_heals(tmp_path: Path, disk: FaultyDisk) -> None:
    with open_store(tmp_path / "practicum.db", vfs=disk.name) as store:
        store.put_call(make_call("a")).result()
        disk.fail_writes = 1_000_000
        with pytest.raises(StoreError, match="Free disk space") as caught:
            store.put_call(make_call("b")).result()
        assert caught.value.status == 503
        assert store.get_call("a") is not None
        assert store.health().lost_jobs == 1
        disk.fail_writes = 0
        store.put_call(make_call("c")).result()
        assert [call.call_id for call in store.calls()] == ["a", "c"]


def test_one_write_that_does_not_fit_does_not_take_its_neighbours_along(tmp_path: Path) -> None:
    def too_much(connection: Any) -> None:
        raise apsw.FullError("this one does not fit")

    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        first = store.put_call(make_call("first"))
        assert gate.reached.wait(30)
        futures = [store.put_call(make_call("a")), store.put_call(make_call("b"))]
        big = store._write(too_much)
        gate.open.set()
        wait([first, *futures])
        with pytest.raises(StoreError):
            big.result()
        assert [call.call_id for call in store.calls()] == ["first", "a", "b"]


def test_a_full_queue_refuses_and_counts(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db", capacity=2) as store:
        store.crashpoint = gate
        taken = store.put_call(make_call("taken"))
        assert gate.reached.wait(30)
        queued = [store.put_call(make_call(name)) for name in "ab"]
        with pytest.raises(StoreError, match="waiting"):
            store.put_call(make_call("c")).result()
        gate.open.set()
        wait([taken, *queued])
        assert store.count_calls() == 3
        assert store.health().refused_jobs == 1


def test_close_writes_what_is_queued_and_refuses_the_rest(tmp_path: Path) -> None:
    store = open_store(tmp_path / "practicum.db")
    futures = [store.put_call(make_call(str(number))) for number in range(1000)]
    store.close()
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(StoreError, match="closed"):
        store.put_call(make_call("late")).result()
    with open_store(tmp_path / "practicum.db") as again:
        assert again.count_calls() == 1000


async def test_a_caller_that_gives_up_does_not_undo_its_write(tmp_path: Path) -> None:
    gate = Gate("before_commit")
    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = gate
        waiting = asyncio.ensure_future(asyncio.wrap_future(store.put_call(make_call("a"))))
        assert await asyncio.to_thread(gate.reached.wait, 30)
        waiting.cancel()
        queued = asyncio.ensure_future(asyncio.wrap_future(store.put_call(make_call("b"))))
        queued.cancel()
        gate.open.set()
        await asyncio.wrap_future(store.put_call(make_call("c")))
        assert [call.call_id for call in store.calls()] == ["a", "b", "c"]


def test_an_error_of_the_program_reaches_the_caller_and_the_writer_lives(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(name)

    with open_store(tmp_path / "practicum.db") as store:
        store.crashpoint = fail
        with pytest.raises(RuntimeError, match="before_commit"):
            store.put_call(make_call("a")).result()
        store.crashpoint = None
        store.put_call(make_call("b")).result()
        assert [call.call_id for call in store.calls()] == ["b"]


def test_a_process_that_holds_the_store_is_waited_for_once(tmp_path: Path) -> None:
    attempts: list[int] = []

    def held(connection: Any) -> None:
        attempts.append(1)
        raise apsw.BusyError("database is locked")

    with open_store(tmp_path / "practicum.db") as store:
        with pytest.raises(StoreError, match="Another process held the store"):
            store._write(held).result()
        assert len(attempts) == 1
        store.put_call(make_call("a")).result()

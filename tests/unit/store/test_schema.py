"""Migrations: each step whole or not at all, newer and foreign files refused and left alone."""

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from practicum.errors import SchemaError, StoreError
from practicum.store import open_store
from practicum.store.connections import open_writer
from practicum.store.schema import APPLICATION_ID, MIGRATIONS, migrate

NEXT = (*MIGRATIONS, "CREATE TABLE second (x); INSERT INTO second VALUES (1);", "ALTER TABLE second ADD COLUMN y;")


class Killed(Exception):
    pass


def version_of(path: Path) -> int:
    connection: Any = apsw.Connection(str(path))
    try:
        return int(connection.pragma("user_version"))
    finally:
        connection.close()


def test_an_older_file_is_brought_up_to_date_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "practicum.db"
    with open_store(path) as store:
        store.create_run("run_1", {}).result()
    connection = open_writer(path)
    migrate(connection, NEXT)
    assert connection.execute("SELECT run_id FROM runs").get == "run_1"
    assert connection.execute("SELECT x, y FROM second").get == (1, None)
    connection.close()
    assert version_of(path) == len(NEXT)


@pytest.mark.parametrize(
    "point", [f"migrate_{n}_{where}" for n in (1, 2, 3) for where in ("begun", "before_commit", "after_commit")]
)
def test_g15_a_migration_stopped_anywhere_resumes(tmp_path: Path, point: str) -> None:
    def stop(name: str) -> None:
        if name == point:
            raise Killed

    path = tmp_path / "practicum.db"
    connection = open_writer(_touch(path))
    with pytest.raises(Killed):
        migrate(connection, NEXT, stop)
    assert not connection.in_transaction
    connection.close()
    connection = open_writer(path)
    migrate(connection, NEXT)
    assert connection.execute("SELECT count(*) FROM second").get == 1
    assert connection.execute("SELECT count(*) FROM secrets").get == 1
    connection.close()


def test_g15_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "practicum.db"
    connection = open_writer(_touch(path))
    migrate(connection, NEXT)
    connection.close()
    with pytest.raises(SchemaError, match="Install the release"):
        open_store(path)
    assert version_of(path) == len(NEXT)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection: Any = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(SchemaError, match="another program"):
        open_store(path)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    content = b"these are my notes, and they are long enough to be read as a header" * 20
    path.write_bytes(content)
    with pytest.raises(SchemaError):
        open_store(path)
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        open_store(tmp_path / "file" / "practicum.db")


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "home" / "practicum.db"
    with open_store(path) as store:
        store.create_run("run_1", {}).result()
        modes = {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()}
    assert set(modes) >= {"practicum.db", "practicum.db-wal"}
    assert set(modes.values()) == {0}


def test_the_file_says_whose_it_is(tmp_path: Path) -> None:
    with open_store(tmp_path / "practicum.db"):
        pass
    header = (tmp_path / "practicum.db").read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID


def _touch(path: Path) -> Path:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def test_calls_of_the_first_schema_came_through_chat_completions(tmp_path: Path) -> None:
    path = tmp_path / "practicum.db"
    connection = open_writer(_touch(path))
    migrate(connection, MIGRATIONS[:1])
    connection.execute(
        "INSERT INTO calls (call_id, session_id, principal, kind, status, created_at, policy_version, model,"
        " temperature, request, text, prompt_ids, completion_ids, logprobs, sampled_logprobs, versions, episode_id,"
        " prompt_hash, history_hash) VALUES ('call_1', 's', 'p', 'agent', 'open', 1.0, 0, 'm', 1.0, '{}', '',"
        " x'00000000', x'00000000', x'00000000', x'00000000', x'00000000', 'ep', '', '')"
    )
    connection.close()
    with open_store(path) as store:
        assert [call.dialect for call in store.calls()] == ["openai_chat"]

"""The tables, once, as numbered migrations, and the code that brings a file up to date.

Each step is one transaction that also moves `PRAGMA user_version`, so a kill at any point leaves a file that the next
opener continues from. Openers that race queue up behind BEGIN IMMEDIATE; each looks at the version again inside its
transaction, so one migrates and the others find it done. A file from a newer release, or one that is not ours, is
refused and left as it is. A released step is never edited; a change is a further step.

`seq` columns give insertion order: paging and "newest" follow it, so a clock that jumps reorders nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from practicum.errors import SchemaError

APPLICATION_ID = 0x50524143

_V1 = """
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);

CREATE TABLE calls (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  call_id NOT NULL UNIQUE, session_id NOT NULL, principal NOT NULL,
  kind TEXT NOT NULL, status TEXT NOT NULL,
  created_at REAL NOT NULL, finished_at REAL,
  policy_version INTEGER NOT NULL, model NOT NULL, temperature REAL NOT NULL,
  request NOT NULL, text NOT NULL, finish_reason TEXT,
  prompt_ids BLOB NOT NULL, completion_ids BLOB NOT NULL,
  logprobs BLOB NOT NULL, sampled_logprobs BLOB NOT NULL, versions BLOB NOT NULL,
  parent_call_id, episode_id NOT NULL, fork_reason, prompt_hash TEXT NOT NULL, history_hash TEXT NOT NULL, error
);
CREATE INDEX calls_by_session ON calls (session_id, seq);
CREATE INDEX calls_by_episode ON calls (episode_id, seq);
CREATE INDEX calls_by_history ON calls (history_hash, principal, seq) WHERE history_hash <> '';
CREATE INDEX calls_by_time ON calls (created_at);
CREATE INDEX calls_open ON calls (created_at) WHERE status = 'open';

CREATE TABLE feedback_items (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  feedback_id NOT NULL UNIQUE, target_kind TEXT NOT NULL, target_id NOT NULL,
  form TEXT NOT NULL, source NOT NULL, principal NOT NULL, created_at REAL NOT NULL
);
CREATE INDEX feedback_by_target ON feedback_items (target_id, target_kind, source);
CREATE INDEX feedback_by_source ON feedback_items (source);
CREATE INDEX feedback_by_principal ON feedback_items (principal);
CREATE TABLE feedback_events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id NOT NULL UNIQUE,
  feedback_id NOT NULL REFERENCES feedback_items (feedback_id),
  position INTEGER NOT NULL, revision INTEGER NOT NULL,
  action TEXT NOT NULL, value NOT NULL, actor NOT NULL, at REAL NOT NULL,
  UNIQUE (feedback_id, position)
);

CREATE TABLE keys (
  key_id TEXT PRIMARY KEY, key_hash BLOB NOT NULL UNIQUE, principal NOT NULL, scopes TEXT NOT NULL,
  created_at REAL NOT NULL, revoked_at REAL
);

CREATE TABLE policy_numbers (version INTEGER PRIMARY KEY AUTOINCREMENT, registration_id TEXT NOT NULL UNIQUE);
CREATE TABLE policies (
  version INTEGER PRIMARY KEY, parent INTEGER REFERENCES policies (version), status TEXT NOT NULL,
  adapter_path TEXT, digest TEXT NOT NULL, created_at REAL NOT NULL, run_id TEXT, note NOT NULL
);
CREATE UNIQUE INDEX one_live_policy ON policies (status) WHERE status = 'live';
CREATE TABLE pointers (name TEXT PRIMARY KEY, version INTEGER NOT NULL REFERENCES policies (version));
CREATE TABLE decisions (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  decision_id TEXT NOT NULL UNIQUE, version INTEGER NOT NULL REFERENCES policies (version), record NOT NULL
);
CREATE INDEX decisions_by_version ON decisions (version, seq);
INSERT INTO policies VALUES
  (0, NULL, 'live', NULL, 'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855',
   unixepoch('now', 'subsec'), NULL, 'the model as it was obtained');
INSERT INTO pointers VALUES ('live', 0);

CREATE TABLE runs (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  run_id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL, config NOT NULL
);
CREATE TABLE run_steps (
  run_id TEXT NOT NULL REFERENCES runs (run_id), step TEXT NOT NULL, seq INTEGER NOT NULL, output NOT NULL,
  at REAL NOT NULL, PRIMARY KEY (run_id, step)
);
CREATE TABLE leases (name TEXT PRIMARY KEY, owner TEXT NOT NULL, token INTEGER NOT NULL, expires_at REAL NOT NULL);
"""

# Calls say which wire format they came through; those before it all came through one.
_V2 = "ALTER TABLE calls ADD COLUMN dialect NOT NULL DEFAULT 'openai_chat';"

# Calls say which rule gave their kind, which harness and agent sent them, and how their session was found.
_V3 = """
ALTER TABLE calls ADD COLUMN kind_reason;
ALTER TABLE calls ADD COLUMN harness NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN agent_id;
ALTER TABLE calls ADD COLUMN session_source NOT NULL DEFAULT '';
CREATE INDEX calls_by_prompt ON calls (prompt_hash, principal, seq) WHERE prompt_hash <> '';
"""

# Rollouts: a submission, its rollouts, what happened to each, and what graders said. A key may belong to one session.
_V4 = """
ALTER TABLE keys ADD COLUMN session_id;

CREATE TABLE rollout_groups (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  group_id TEXT NOT NULL UNIQUE, principal NOT NULL, submission NOT NULL, task NOT NULL,
  created_at REAL NOT NULL, callback TEXT NOT NULL,
  UNIQUE (principal, submission)
);
CREATE INDEX rollout_groups_to_tell ON rollout_groups (seq) WHERE callback = 'pending';
CREATE TABLE rollouts (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  rollout_id TEXT NOT NULL UNIQUE, group_id TEXT NOT NULL REFERENCES rollout_groups (group_id),
  position INTEGER NOT NULL, state TEXT NOT NULL, instructions NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, session_id NOT NULL DEFAULT '', turns_done INTEGER NOT NULL DEFAULT 0,
  cause TEXT, error, output NOT NULL DEFAULT '', created_at REAL NOT NULL, ended_at REAL,
  UNIQUE (group_id, position)
);
CREATE INDEX rollouts_under_way ON rollouts (seq) WHERE state <> 'ended';
CREATE TABLE rollout_events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  event_id TEXT NOT NULL UNIQUE, rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id),
  attempt INTEGER NOT NULL, kind TEXT NOT NULL, at REAL NOT NULL, detail NOT NULL
);
CREATE INDEX rollout_events_by_rollout ON rollout_events (rollout_id, seq);
CREATE TABLE rollout_outcomes (
  rollout_id TEXT NOT NULL REFERENCES rollouts (rollout_id), position INTEGER NOT NULL,
  name NOT NULL, reward REAL, reason NOT NULL, given_by NOT NULL,
  PRIMARY KEY (rollout_id, position)
);
"""

MIGRATIONS: tuple[str, ...] = (_V1, _V2, _V3, _V4)


def migrate(
    connection: Any,
    migrations: Sequence[str] = MIGRATIONS,
    crashpoint: Callable[[str], None] = lambda name: None,
) -> None:
    """Bring the file behind `connection` to version `len(migrations)`.

    Raises: SchemaError for a newer file, or one that is not a store.
    """
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _check(connection, len(migrations))
            if version == len(migrations):
                return
            crashpoint(f"migrate_{version + 1}_begun")
            connection.execute(migrations[version])
            if version == 0:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute("INSERT INTO secrets VALUES ('key_hmac', ?)", (os.urandom(32),))
            connection.execute(f"PRAGMA user_version = {version + 1}")
            crashpoint(f"migrate_{version + 1}_before_commit")
            connection.execute("COMMIT")
            crashpoint(f"migrate_{version + 1}_after_commit")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _check(connection: Any, newest: int) -> int:
    try:
        version = int(connection.pragma("user_version"))
        application_id = int(connection.pragma("application_id"))
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    except apsw.NotADBError as error:
        raise SchemaError("The file is not a Practicum store.", hint="Give the path of another file.") from error
    if application_id != APPLICATION_ID and (application_id or version or tables):
        raise SchemaError("The file is a database of another program.", hint="Give the path of another file.")
    if version > newest:
        raise SchemaError(
            f"The store has schema {version}; this release knows schemas up to {newest}.",
            hint="Install the release that wrote it, or a newer one.",
        )
    return version

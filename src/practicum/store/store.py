"""The store: append records, query records, in one SQLite file that several processes may share.

Writes go through one thread per process and return futures that resolve once the record is on disk: synchronous
callers take `.result()`, asynchronous ones `await asyncio.wrap_future(...)`. Reads are synchronous, on a connection
per thread, and see everything whose future has resolved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from practicum.store import call_rows, connections, feedback_rows, key_rows, policy_rows, rollout_rows, run_rows, schema
from practicum.store.core import Core
from practicum.types.calls import Asked, CallStatus, ModelCall
from practicum.types.feedback import Feedback, FeedbackEvent, TargetKind
from practicum.types.outcomes import Outcome
from practicum.types.policies import Decision, PolicyVersion
from practicum.types.principals import KeyRecord, Principal
from practicum.types.rollouts import Cause, Group, Rollout, RolloutState
from practicum.types.runs import Lease, Run, RunStep


class Store(Core):
    """Made by `open_store`; a context manager."""

    def __init__(
        self,
        path: Path,
        *,
        vfs: str = "",
        capacity: int = 4096,
        crashpoint: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(path, vfs=vfs, capacity=capacity, crashpoint=crashpoint)
        self._clock = clock
        self.revocations = 0
        self.key_secret: bytes = self._read(key_rows.secret)

    # -- model calls ---------------------------------------------------------------------------------------------

    def put_call(self, call: ModelCall) -> Future[None]:
        """Insert a call or finish its open record. A final status never goes back to `open`."""
        return self._write_record(call_rows.put_all, call)

    def interrupt_open_calls(self, started_before: float) -> Future[int]:
        """At start-up: mark calls that an earlier process left open as interrupted; how many."""
        return self._write(lambda connection: call_rows.interrupt_open(connection, started_before))

    def get_call(self, call_id: str) -> ModelCall | None:
        """The call with this id."""
        return self._read(lambda connection: call_rows.get(connection, call_id))

    def calls(
        self,
        session_id: str | None = None,
        status: CallStatus | None = None,
        since: float | None = None,
        limit: int | None = None,
        after: str | None = None,
        *,
        episode_id: str | None = None,
        newest_first: bool = False,
    ) -> list[ModelCall]:
        """Calls in order of arrival; `since` bounds `created_at`, `after` is the last call id of the page before."""
        return self._read(
            lambda connection: call_rows.select(
                connection,
                session_id=session_id,
                episode_id=episode_id,
                status=status,
                since=since,
                after=after,
                limit=limit,
                newest_first=newest_first,
            )
        )

    def find_by_history(
        self, principal: str, history_hash: str, session_id: str = "", limit: int = 64
    ) -> list[ModelCall]:
        """Calls of a principal after which the conversation is `history_hash`, newest first."""
        return self._read(
            lambda connection: call_rows.by_history(connection, principal, history_hash, session_id, limit)
        )

    def last_asked(self, principal: str, prompt_hash: str, session_id: str | None = None) -> Asked | None:
        """Who of a principal's was asked `prompt_hash` last, in a session if it is named."""
        return self._read(lambda connection: call_rows.last_asked(connection, principal, prompt_hash, session_id))

    def undelivered(self, newest: int = 2000) -> list[tuple[str, str]]:
        """Principal and prompt hash of those of the newest calls whose answer did not arrive, oldest first."""
        return self._read(lambda connection: call_rows.undelivered(connection, newest))

    def last_call(self, session_id: str) -> ModelCall | None:
        """The newest call of a session."""
        return self._read(lambda connection: call_rows.last(connection, session_id))

    def last_turn(self, session_id: str, agent_id: str | None) -> ModelCall | None:
        """The newest call of one of a session's agents (None: the main one) that is no side call."""
        return self._read(lambda connection: call_rows.last_turn(connection, session_id, agent_id))

    def count_calls(self) -> int:
        """How many calls there are."""
        return self._read(call_rows.count)

    def has_target(self, target_kind: TargetKind, target_id: str) -> bool:
        """Whether the call, or a call of the session, is on record."""
        return self._read(lambda connection: call_rows.exists(connection, target_kind, target_id))

    # -- feedback ------------------------------------------------------------------------------------------------

    def append_feedback(self, plan: feedback_rows.Plan) -> Future[Feedback]:
        """Decide and append in one transaction; see `feedback_rows.Plan`. What the plan raises is the future's."""
        return self._write(lambda connection: feedback_rows.append(connection, plan))

    def append_feedback_event(self, event: FeedbackEvent) -> Future[Feedback]:
        """Append one event as it is; an event id that is on record already changes nothing."""
        return self._write(lambda connection: feedback_rows.append_event(connection, event))

    def get_feedback(self, feedback_id: str) -> Feedback | None:
        """The current state of an item."""
        return self._read(lambda connection: feedback_rows.get(connection, feedback_id))

    def feedback_events(self, feedback_id: str) -> list[FeedbackEvent]:
        """An item's events, oldest first."""
        return self._read(lambda connection: feedback_rows.events(connection, feedback_id))

    def feedback(
        self,
        target_id: str | None = None,
        source: str | None = None,
        include_retracted: bool = False,
        since: float | None = None,
        *,
        principal: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[Feedback]:
        """Current states, in the order in which the items were first given.

        `source` is exact; `principal` also matches that principal's users. `since` bounds the last change, `after` is
        the last feedback id of the page before.
        """
        return self._read(
            lambda connection: feedback_rows.select(
                connection,
                target_id=target_id,
                source=source,
                principal=principal,
                include_retracted=include_retracted,
                since=since,
                after=after,
                limit=limit,
                newest_first=newest_first,
            )
        )

    # -- keys ----------------------------------------------------------------------------------------------------

    def put_key(self, record: KeyRecord, key_hash: bytes) -> Future[None]:
        """Add a key; see `keys.create_key`."""
        return self._write(lambda connection: key_rows.put(connection, record, key_hash))

    def revoke_key(self, key_id: str, at: float) -> Future[bool]:
        """Revoke a key; False where there is none."""
        return self._write(lambda connection: key_rows.revoke(connection, key_id, at), self._revoked)

    def revoke_session_keys(self, session_id: str, at: float) -> Future[int]:
        """Revoke the keys that belong to a session; how many."""
        return self._write(lambda connection: key_rows.revoke_for_session(connection, session_id, at), self._revoked)

    def _revoked(self) -> None:
        """Count this process's revocations, so that nobody goes by what was read before one."""
        self.revocations += 1

    def find_key(self, key_hash: bytes) -> Principal | None:
        """The principal of a key that is not revoked."""
        return self._read(lambda connection: key_rows.find(connection, key_hash))

    def keys(self) -> list[KeyRecord]:
        """All keys, oldest first, revoked ones too."""
        return self._read(key_rows.select)

    # -- policies (`policies.Registry` checks the files; use that) -----------------------------------------------

    def reserve_policy_number(self, registration_id: str) -> Future[int]:
        """A version number of one's own; asking again with the same id gives the same number."""
        return self._write(lambda connection: policy_rows.reserve_number(connection, registration_id))

    def add_policy(self, policy: PolicyVersion) -> Future[None]:
        """Add a version under its reserved number."""
        return self._write(lambda connection: policy_rows.add(connection, policy))

    def apply_decision(self, decision: Decision) -> Future[PolicyVersion]:
        """Record a decision and move statuses and pointer with it; the version that is live afterwards."""
        return self._write(lambda connection: policy_rows.apply_decision(connection, decision))

    def drop_policy(self, version: int) -> Future[None]:
        """A candidate becomes `dropped`: nothing can name it any more. Raises NotFound; Conflict."""
        return self._write(lambda connection: policy_rows.drop(connection, version))

    def get_policy(self, version: int) -> PolicyVersion | None:
        """One version; `adapter_path` is relative to the policies folder."""
        return self._read(lambda connection: policy_rows.get(connection, version))

    def policies(self) -> list[PolicyVersion]:
        """All versions, in order."""
        return self._read(policy_rows.select)

    def live_policy(self) -> PolicyVersion:
        """The version that the live pointer names."""
        return self._read(policy_rows.live)

    def decisions(self, version: int | None = None) -> list[Decision]:
        """Decisions, oldest first; only those about `version` where it is given."""
        return self._read(lambda connection: policy_rows.decisions(connection, version))

    # -- runs and leases -----------------------------------------------------------------------------------------

    def create_run(self, run_id: str, config: Mapping[str, Any], state: str = "created") -> Future[Run]:
        """Add a run; one that is on record stays as it is."""
        now = self._clock()
        return self._write(lambda connection: run_rows.create(connection, run_id, state, config, now))

    def set_run_state(self, run_id: str, state: str, *, fence: Lease | None = None) -> Future[Run]:
        """Move a run to another state. Raises NotFound; Conflict where `fence` was lost."""
        now = self._clock()
        return self._write(lambda connection: run_rows.set_state(connection, run_id, state, now, fence))

    def finish_step(self, run_id: str, step: str, output: Any, *, fence: Lease | None = None) -> Future[RunStep]:
        """Record a step's output (JSON); the first one stands. Raises NotFound; Conflict where `fence` was lost."""
        now = self._clock()
        return self._write(lambda connection: run_rows.finish_step(connection, run_id, step, output, now, fence))

    def get_run(self, run_id: str) -> Run | None:
        """One run."""
        return self._read(lambda connection: run_rows.get(connection, run_id))

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return self._read(run_rows.select)

    def run_steps(self, run_id: str) -> list[RunStep]:
        """A run's finished steps, in order."""
        return self._read(lambda connection: run_rows.steps(connection, run_id))

    def acquire_lease(self, name: str, owner: str, ttl_s: float) -> Future[Lease | None]:
        """Take a lease that is free, expired or the owner's own; None where another holds it."""
        return self._write(lambda connection: run_rows.acquire_lease(connection, name, owner, ttl_s, self._clock()))

    def renew_lease(self, lease: Lease, ttl_s: float) -> Future[Lease | None]:
        """Hold a lease for longer; None where another has taken it."""
        return self._write(lambda connection: run_rows.renew_lease(connection, lease, ttl_s, self._clock()))

    def release_lease(self, lease: Lease) -> Future[None]:
        """Let go of a lease; one that another has taken stays theirs."""
        return self._write(lambda connection: run_rows.release_lease(connection, lease))

    def lease(self, name: str) -> Lease | None:
        """Who holds, or last held, a lease."""
        return self._read(lambda connection: run_rows.get_lease(connection, name))

    # -- rollouts (`harnesses.RolloutService` runs them; use that) -----------------------------------------------

    def submit_rollouts(self, group: Group, submission: str, rollout_ids: Sequence[str]) -> Future[Group]:
        """Add a group with its rollouts; the earlier one where `submission` was used. Conflict for another task."""
        return self._write(lambda connection: rollout_rows.submit(connection, group, submission, rollout_ids))

    def change_rollout(
        self,
        event: rollout_rows.RolloutEvent,
        changes: Mapping[str, Any],
        outcomes: Sequence[Outcome] = (),
        *,
        attempt: int | None = None,
    ) -> Future[bool]:
        """Record what happened to a rollout and change it; False where it has ended or is at another attempt."""
        return self._write(lambda connection: rollout_rows.change(connection, event, changes, outcomes, attempt))

    def set_callback(self, group_id: str, callback: str) -> Future[None]:
        """Note what became of telling a group's end."""
        return self._write(lambda connection: rollout_rows.set_callback(connection, group_id, callback))

    def untold_groups(self) -> list[str]:
        """Groups whose end somebody waits to be told."""
        return self._read(rollout_rows.untold)

    def groups(self, principal: str | None = None, limit: int = 100) -> list[Group]:
        """The newest groups, newest first, without their rollouts."""
        return self._read(lambda connection: rollout_rows.groups_of(connection, principal, limit))

    def get_group(self, group_id: str) -> Group:
        """A group with its rollouts. Raises NotFound."""
        return self._read(lambda connection: rollout_rows.require_group(connection, group_id))

    def get_rollout(self, rollout_id: str) -> Rollout:
        """One rollout. Raises NotFound."""
        return self._read(lambda connection: rollout_rows.require_rollout(connection, rollout_id))

    def rollout_states(self, group_id: str) -> list[tuple[str, RolloutState, Cause | None]]:
        """`(rollout_id, state, cause)` of a group's rollouts; the ended ones first, in the order of their ends."""
        return self._read(lambda connection: rollout_rows.states(connection, group_id))

    def rollouts_under_way(self) -> list[tuple[str, str]]:
        """`(group_id, rollout_id)` of every rollout that has not ended, in order of submission."""
        return self._read(rollout_rows.under_way)

    def session_harnesses(self, session_ids: Iterable[str]) -> dict[str, str]:
        """The harness that a rollout's task named, by session, for those sessions that are a rollout's."""
        return self._read(lambda connection: rollout_rows.session_harnesses(connection, session_ids))

    def rollout_events(self, rollout_id: str) -> list[rollout_rows.RolloutEvent]:
        """What happened to a rollout, oldest first."""
        return self._read(lambda connection: rollout_rows.events(connection, rollout_id))


def open_store(
    path: Path,
    *,
    vfs: str = "",
    capacity: int = 4096,
    crashpoint: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.time,
) -> Store:
    """Open, or create, the store at `path` and bring its schema up to date.

    Args:
        path: the SQLite file; its folder is made where it is missing.
        vfs: name of a registered SQLite VFS; tests inject faults there.
        capacity: most writes that may wait; further ones fail with StoreError.
        crashpoint: called at named points; tests kill the process there.
        clock: UTC seconds; dates runs and leases.

    Raises: SchemaError for a newer file or a foreign one; StoreError where the file cannot be opened.
    """
    connections.check_library()
    connections.create_file(path)
    try:
        connection = connections.open_writer(path, vfs)
        try:
            schema.migrate(connection, crashpoint=crashpoint or (lambda name: None))
        finally:
            connection.close()
        return Store(path, vfs=vfs, capacity=capacity, crashpoint=crashpoint, clock=clock)
    except connections.FILE_ERRORS as error:
        raise connections.store_error(error) from error

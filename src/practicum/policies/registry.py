"""The registry of policy versions: candidates come in, decisions move the live pointer, nothing else does.

Registering reserves a number, copies the adapter to `policies_dir/v{n}` and only then records the version, so a
version on record has its whole folder. A number whose registration was killed is not used again.

Invariants:
- Nothing goes live without a decision record (`apply_decision`): record, statuses and pointer are one transaction.
- What goes live has the digest that it was registered with; it is recomputed first.
- What is dropped keeps its record, is marked before its folder goes, and is never served or promoted again.
- Version 0, the model as it was obtained, exists from the first open and is live until something replaces it.

It must not know tensors, engines, nor how a decision is reached.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from practicum.errors import CorruptArtifact, NotFound, StoreError
from practicum.policies.folders import ALLOWED_SUFFIXES, REQUIRED_FILES, check_adapter, copy_adapter
from practicum.store import Store
from practicum.types.digests import folder_digest
from practicum.types.ids import new_id
from practicum.types.policies import Decision, PolicyVersion

__all__ = ["ALLOWED_SUFFIXES", "REQUIRED_FILES", "Registry"]


class Registry:
    """Policy versions of one store, their adapters under `policies_dir`.

    Records carry an absolute `adapter_path`; the store keeps it relative, so a home that moves stays valid.
    `crashpoint` is for tests: called with the name of each step passed.
    """

    def __init__(self, store: Store, policies_dir: Path, *, crashpoint: Callable[[str], None] | None = None) -> None:
        self._store = store
        self._folder = policies_dir.absolute()
        self._crashpoint = crashpoint or (lambda name: None)

    def base(self) -> PolicyVersion:
        """Version 0."""
        return self.get(0)

    def live(self) -> PolicyVersion:
        """The version that is served by default."""
        return self._resolve(self._store.live_policy())

    def get(self, version: int) -> PolicyVersion:
        """One version. Raises NotFound."""
        found = self._store.get_policy(version)
        if found is None:
            raise NotFound(f"There is no policy version {version}.", hint="`practicum release list` shows them.")
        return self._resolve(found)

    def list(self) -> Sequence[PolicyVersion]:
        """All versions, in order."""
        return [self._resolve(policy) for policy in self._store.policies()]

    def register_candidate(
        self, adapter_dir: Path, parent: int, run_id: str | None = None, note: str = ""
    ) -> PolicyVersion:
        """Copy an adapter in and record it as the next version, a candidate.

        Raises: UsageError for a folder that is no adapter; NotFound for the parent; StoreError where it cannot be
        written. None of them records a version.
        """
        check_adapter(adapter_dir)
        self.get(parent)
        version = self._store.reserve_policy_number(new_id("reg")).result()
        self._crashpoint("reserved")
        folder = self._folder / f"v{version}"
        try:
            if folder.exists():  # of a store that this folder outlived; no version on record has this number
                shutil.rmtree(folder)
            copy_adapter(adapter_dir, folder, self._crashpoint)
            digest = folder_digest(folder)
        except OSError as error:
            raise StoreError(f"The adapter could not be kept: {error}.", hint="Free disk space and retry.") from error
        policy = PolicyVersion(
            version=version,
            parent=parent,
            status="candidate",
            adapter_path=folder.name,
            digest=digest,
            created_at=time.time(),
            run_id=run_id,
            note=note,
        )
        self._store.add_policy(policy).result()
        self._crashpoint("registered")
        return self._resolve(policy)

    def verify(self, version: int) -> PolicyVersion:
        """The version, its files checked against its digest. Raises CorruptArtifact; NotFound."""
        policy = self.get(version)
        if policy.status == "dropped":
            raise NotFound(
                f"The weights of policy version {version} were dropped ({policy.note or 'no reason is on record'}).",
                hint="`practicum release list` shows the versions that can be had.",
            )
        if policy.adapter_path is None:
            return policy
        try:
            digest = folder_digest(Path(policy.adapter_path))
        except (OSError, ValueError) as error:
            raise self._corrupt(version, str(error)) from error
        if digest != policy.digest:
            raise self._corrupt(version, f"its digest is {digest}, not {policy.digest}")
        return policy

    def drop(self, version: int) -> None:
        """Give up a candidate's weights and keep its record; again is harmless. Raises NotFound; Conflict."""
        self._store.drop_policy(version).result()
        self._crashpoint("dropped")
        shutil.rmtree(self._folder / f"v{version}", ignore_errors=True)

    def apply_decision(self, decision: Decision) -> PolicyVersion:
        """Do what a decision says, with its record, in one transaction; returns the version that is live afterwards.

        promote: candidate to live, `previous` to retired. refuse: candidate to refused. rollback: `version` is where
        to go back to, from retired or withdrawn to live, and `previous` goes to withdrawn. Applying the same decision
        again changes nothing.

        Raises: Conflict where the state does not allow it, or where `previous` is not the live version any more;
        CorruptArtifact where the files of what would go live do not match; NotFound.
        """
        if decision.verdict != "refuse":
            self.verify(decision.version)
        return self._resolve(self._store.apply_decision(decision).result())

    def decisions(self, version: int | None = None) -> Sequence[Decision]:
        """Decisions, oldest first; only those about `version` where it is given."""
        return self._store.decisions(version)

    def _resolve(self, policy: PolicyVersion) -> PolicyVersion:
        if policy.adapter_path is None:
            return policy
        return replace(policy, adapter_path=str(self._folder / policy.adapter_path))

    @staticmethod
    def _corrupt(version: int, reason: str) -> CorruptArtifact:
        return CorruptArtifact(
            f"Policy version {version} is not what was registered: {reason}.",
            hint="Restore its folder, or roll back to another version.",
        )

"""Follows the live pointer: loads what goes live, then gives new requests to it. Running answers stay on their version.

A rollback is the same path. A version that cannot be loaded leaves the one before serving, is tried again with growing
pauses, and shows in the readiness report; at start-up the nearest released version that it came from stands in for it.
The gateway learns the live version from the registry and from nowhere else.

An engine keeps so many versions in memory and drops others, so it is asked before every answer; loading is idempotent.

Invariant: `serving` was loaded. It must not know requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from practicum.errors import EngineError, NotFound, PracticumError
from practicum.types.policies import PolicyVersion
from practicum.types.seams import Sampler

_log = logging.getLogger("practicum.gateway.swap")
_LONGEST_PAUSE_S = 30.0
RELEASED = frozenset({"live", "retired"})


def may_be_named(policy: PolicyVersion, *, candidates: bool) -> bool:
    """Whether a request may name this version: a released one; a candidate only where its answers reach no user."""
    return policy.status in RELEASED or (candidates and policy.status == "candidate")


class Policies(Protocol):
    """What the gateway needs of the registry. The calls may block."""

    def live(self) -> PolicyVersion:
        """The version that is served by default."""

    def get(self, version: int) -> PolicyVersion:
        """One version. Raises NotFound."""

    def list(self) -> Sequence[PolicyVersion]:
        """All versions."""


class Swapper:
    """Keeps `serving` at the live version.

    Args:
        policies: who is live.
        sampler: loads versions.
        poll_s: seconds between looks at the live pointer.
        clock: monotonic seconds.
    """

    def __init__(
        self, policies: Policies, sampler: Sampler, *, poll_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policies = policies
        self._sampler = sampler
        self._poll_s = poll_s
        self._clock = clock
        self._loading: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pause_s = poll_s
        self._retry_at = 0.0
        self._failed: int | None = None
        self.serving: PolicyVersion | None = None
        self.wanted: int | None = None
        self.alarm: str | None = None

    async def run(self) -> None:
        """Follow the pointer until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(self._poll_s)

    async def look(self) -> None:
        """Look once, and swap where the pointer has moved."""
        live: PolicyVersion | None = None
        try:
            live = await asyncio.to_thread(self._policies.live)
            self.wanted = live.version
            if self.serving is not None and self.serving.version == live.version:
                self._settle()
                return
            if self._failed == live.version and self._clock() < self._retry_at:
                return
            await self._load(live)
        except Exception as error:  # whatever an engine raises, the version before goes on serving
            self._fail(error)
            if self.serving is None and live is not None:
                await self._serve_ancestor(live)
            return
        self.serving = live
        self._settle()
        _log.info("serving version %d", live.version)

    async def ensure(self, version: int, *, candidates: bool = False) -> PolicyVersion:
        """Load a version that a request names. Raises NotFound, or EngineError when it cannot be loaded."""
        policy = await asyncio.to_thread(self._policies.get, version)
        if not may_be_named(policy, candidates=candidates):
            raise NotFound(f"Version {version} is {policy.status}, not released.", code="model_not_found")
        return await self._ensured(policy)

    async def ensure_current(self) -> PolicyVersion:
        """`current`, loaded again if the engine has dropped it. Raises EngineError."""
        return await self._ensured(self.current())

    def current(self) -> PolicyVersion:
        """The version for a new request. Raises EngineError while none is loaded."""
        if self.serving is None:
            raise EngineError("No policy is loaded yet.", hint="Try again in a moment.", code="not_ready")
        return self.serving

    async def _ensured(self, policy: PolicyVersion) -> PolicyVersion:
        try:
            await self._load(policy)
        except PracticumError as error:  # its message may name files
            _log.error("version %d cannot be served: %s", policy.version, error)
            raise EngineError(f"Version {policy.version} cannot be served.", code=error.code) from error
        return policy

    async def _load(self, policy: PolicyVersion) -> None:
        """One load of a version at a time; other versions do not wait for it."""
        async with self._loading[policy.version]:
            path = None if policy.adapter_path is None else Path(policy.adapter_path)
            await self._sampler.load(policy.version, path, policy.digest)

    async def _serve_ancestor(self, policy: PolicyVersion) -> None:
        """Nothing was served yet, and the live version cannot be: serve what it came from until it can."""
        while policy.parent is not None and self.serving is None:
            try:
                policy = await asyncio.to_thread(self._policies.get, policy.parent)
            except PracticumError as error:
                _log.error("version %d cannot be looked up: %s", policy.parent, error)
                return
            if policy.status not in RELEASED:
                continue
            try:
                await self._load(policy)
                self.serving = policy
            except Exception as error:  # as in `look`; one further back may do
                _log.error("version %d cannot be served either: %s", policy.version, error)

    def _settle(self) -> None:
        self._failed, self.alarm, self._pause_s = None, None, self._poll_s

    def _fail(self, error: Exception) -> None:
        name = error.code if isinstance(error, PracticumError) else type(error).__name__
        self.alarm = f"version {self.wanted} cannot be served: {name}"
        self._failed = self.wanted
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._retry_at = self._clock() + self._pause_s
        _log.error("%s: %s", self.alarm, error, exc_info=not isinstance(error, PracticumError))

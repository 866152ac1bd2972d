"""Whether the engine makes progress: tokens that arrive, not a process that exists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from practicum.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """`waiting` answers under way; seconds since the engine last gave a token to any of them; failures in a row."""

    waiting: int
    silent_s: float
    failures_in_a_row: int
    stalled: bool


class EngineWatch:
    """Told of every answer and of every token. `clock` gives monotonic seconds."""

    def __init__(self, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._waiting = 0
        self._last = clock()
        self._failures = 0

    @contextmanager
    def answer(self) -> Iterator[None]:
        """Around one answer."""
        if not self._waiting:
            self._last = self._clock()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def progress(self) -> None:
        """A token arrived."""
        self._last = self._clock()
        self._failures = 0

    def failed(self) -> None:
        """An answer ended in an engine error."""
        self._failures += 1

    def check(self) -> None:
        """Raises EngineError when answers wait and the engine has been silent for too long."""
        if self.health().stalled:
            raise EngineError(
                f"The engine has given no token for {self._stall_s:g} s.", hint="Try again.", code="engine_stalled"
            )

    def health(self) -> EngineHealth:
        """How the engine is doing."""
        silent_s = self._clock() - self._last if self._waiting else 0.0
        return EngineHealth(
            waiting=self._waiting,
            silent_s=round(silent_s, 3),
            failures_in_a_row=self._failures,
            stalled=silent_s > self._stall_s,
        )

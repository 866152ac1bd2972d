"""Stop strings over text as it streams: emits what is certain, holds back what could still begin a stop."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Cuts a stream of text in front of the first stop string. With no stop strings it lets everything through."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.matched: str | None = None

    @property
    def hit(self) -> bool:
        """Whether a stop string was found; `matched` is the one."""
        return self.matched is not None

    def feed(self, text: str) -> str:
        """Text that may leave. Once `hit` is set, nothing more does."""
        if self.hit:
            return ""
        self._pending += text
        found = [(at, stop) for stop in self._stops if (at := self._pending.find(stop)) >= 0]
        if found:
            # The one that is whole first, as if every character came alone: where tokens end makes no difference.
            at, self.matched = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            out, self._pending = self._pending[:at], ""
            return out
        cut = len(self._pending) - self._held()
        out, self._pending = self._pending[:cut], self._pending[cut:]
        return out

    def finish(self) -> str:
        """What was held back."""
        out, self._pending = self._pending, ""
        return out

    def _held(self) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._pending)), 0, -1):
            if any(stop.startswith(self._pending[-length:]) for stop in self._stops):
                return length
        return 0

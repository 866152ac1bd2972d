"""What one learning run trains on and is judged by, frozen before training so that it can be explained and rerun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EntryUse = Literal["hindsight", "clone", "polarity"]
Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One use of feedback on one call.

    `use` says how it teaches: `hindsight` (a comment, read in the teacher's prompt), `clone` (a corrected answer, to
    be imitated), `polarity` (a number in [-1, 1], which pushes the served tokens up or down). `weight` is the trust in
    its source, in [0, 1].
    """

    call_id: str
    session_id: str
    feedback_ids: tuple[str, ...]
    sources: tuple[str, ...]
    use: EntryUse
    split: Split
    text: str = ""
    polarity: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """Feedback or a call that does not train, and why. Nothing is left out without one."""

    item_id: str
    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The frozen selection. `heldout_calls` are the calls of the latest sessions: they are never trained on.

    `cutoff` is the creation time of the first held-out session's first call (UTC seconds); `digest` is the SHA-256
    over entries and held-out calls, so two runs on the same data can be told to be the same.
    """

    entries: tuple[Entry, ...]
    excluded: tuple[Exclusion, ...]
    train_calls: tuple[str, ...]
    heldout_calls: tuple[str, ...]
    cutoff: float
    digest: str

    def select(self, use: EntryUse, split: Split) -> tuple[Entry, ...]:
        """Entries of one use and one split, in a stable order."""
        return tuple(entry for entry in self.entries if entry.use == use and entry.split == split)

"""Append-only episodes and the training rows made of them.

An episode is one sequence of ids, served as it stands: each call's prompt begins with all that came before it. A row
is an episode's ids at one temperature; a token that a row does not train has weight 0 there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Where one call's sampled tokens lie in an episode: `ids[start:stop]`. `trains` says whether they are trained."""

    call_id: str
    start: int
    stop: int
    temperature: float
    trains: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """`ids`, `mask`, `logprobs`, `versions`: [L]. Where `mask` is False, the logprob is None and the version None.

    `forked_from` is the call whose ids this episode shares without training them again, and `fork_reason` why.
    """

    episode_id: str
    session_id: str
    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    spans: tuple[Span, ...]
    forked_from: str | None = None
    fork_reason: str | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.logprobs) == len(self.versions):
            raise ValueError(f"episode {self.episode_id}: ids, mask, logprobs and versions must align one to one")

    @property
    def sampled_tokens(self) -> int:
        """How many tokens it trains."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """`prompt_ids: [P]`, then `completion_ids`, `mask`, `logprobs`, `versions`: [T] from the first trained token on.

    `logprobs` were taken at `temperature`. `call_ids` are the calls whose tokens it trains.
    """

    row_id: str
    episode_id: str
    session_id: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    temperature: float
    call_ids: tuple[str, ...]

    @property
    def trained_tokens(self) -> int:
        """How many tokens have weight."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What became of a session's calls: rows, and for every call that is in none of them the reason."""

    rows: tuple[TrainingRow, ...]
    episodes: tuple[Episode, ...]
    refusals: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

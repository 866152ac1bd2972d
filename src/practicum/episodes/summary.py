"""What became of each harness's calls: kinds, sessions, episodes, rows, forks and refusals, counted.

Everything is derived from the records; a request that was refused before it was sampled left none. Calls count for the
harness that sent them, sessions for the one that began them, episodes and rows for the one of their first call.

The logprob gap is the largest difference between a trained token's recorded logprob and the one that an engine
recomputes for the served ids; it needs an engine and is None where none was asked. Pure but for `recomputed_gaps`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from practicum.dialects.registry import recorded_request
from practicum.dialects.volatile import volatile_in
from practicum.episodes.link import FORK_MEANING
from practicum.episodes.rows import training_rows
from practicum.episodes.settle import settle_kinds
from practicum.episodes.side_calls import REASONS
from practicum.errors import RequestError
from practicum.renderers import ChatTokenizer, IncrementalDecoder
from practicum.types.calls import ModelCall
from practicum.types.episodes import Rows

# Every reason that an episode may have for beginning where it does.
FORKS: dict[str, str] = {
    **{str(name): meaning for name, meaning in FORK_MEANING.items()},
    "branched": "a second request went on from the same answer",
    "ids_do_not_extend": "the served ids do not begin with the parent's",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobGap:
    """Recomputed minus recorded logprobs of `tokens` trained tokens: largest and mean absolute difference."""

    tokens: int
    largest: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSummary:
    """Counts for one harness. `merge_ratio` is trained calls per row; `refusals` are calls that train nothing.

    `side_calls` counts calls by the rule or course that gave their kind; `agents` are sub-agents; `volatile` counts
    calls whose system text a rule blanked for comparison. `cut_by_default` counts answers that a limit ended which the
    request had not asked for: the gateway's default, or the end of the context.
    """

    harness: str
    calls: int
    kinds: Mapping[str, int]
    side_calls: Mapping[str, int]
    sessions: int
    session_sources: Mapping[str, int]
    agents: int
    episodes: int
    rows: int
    sampled_tokens: int
    trained_tokens: int
    merge_ratio: float | None
    forks: Mapping[str, int]
    refusals: Mapping[str, int]
    volatile: Mapping[str, int]
    cut_by_default: int
    logprob_gap: LogprobGap | None


@dataclass(slots=True)
class _Tally:
    """The counts of one harness while they grow."""

    calls: list[ModelCall]
    sessions: int = 0
    episodes: int = 0
    rows: int = 0
    row_calls: int = 0
    trained_tokens: int = 0


def summarise(calls: Sequence[ModelCall], gaps: Mapping[str, LogprobGap] | None = None) -> list[HarnessSummary]:
    """One summary a harness, by name.

    Args:
        calls: whole sessions, in order of arrival.
        gaps: per call id, from `recomputed_gaps`.
    """
    tallies: dict[str, _Tally] = defaultdict(lambda: _Tally([]))
    forks: dict[str, Counter[str]] = defaultdict(Counter)
    refusals: dict[str, Counter[str]] = defaultdict(Counter)
    for own in _by_session(calls).values():
        settled = settle_kinds(own)
        sender = {call.call_id: _name(call) for call in settled}
        tallies[_name(settled[0])].sessions += 1
        for call in settled:
            tallies[_name(call)].calls.append(call)
        _count_rows(training_rows(settled), sender, tallies, forks, refusals)
    return [_summary(name, tallies[name], forks[name], refusals[name], gaps) for name in sorted(tallies)]


def _count_rows(
    made: Rows,
    sender: Mapping[str, str],
    tallies: Mapping[str, _Tally],
    forks: Mapping[str, Counter[str]],
    refusals: Mapping[str, Counter[str]],
) -> None:
    for episode in made.episodes:
        if episode.sampled_tokens:
            name = sender[episode.spans[0].call_id]
            tallies[name].episodes += 1
            forks[name][episode.fork_reason or "new_conversation"] += 1
    for row in made.rows:
        tally = tallies[sender[row.call_ids[0]]]
        tally.rows += 1
        tally.row_calls += len(row.call_ids)
        tally.trained_tokens += row.trained_tokens
    for call_id, reason in made.refusals.items():
        refusals[sender[call_id]][reason] += 1


def _summary(
    name: str,
    tally: _Tally,
    forks: Counter[str],
    refusals: Counter[str],
    gaps: Mapping[str, LogprobGap] | None,
) -> HarnessSummary:
    calls = tally.calls
    return HarnessSummary(
        harness=name,
        calls=len(calls),
        kinds=_sorted(Counter(call.kind for call in calls)),
        side_calls=_sorted(Counter(call.kind_reason for call in calls if call.kind_reason in REASONS)),
        sessions=tally.sessions,
        session_sources=_sorted(Counter(call.session_source or "not recorded" for call in calls)),
        agents=len({(call.session_id, call.agent_id) for call in calls if call.agent_id}),
        episodes=tally.episodes,
        rows=tally.rows,
        sampled_tokens=sum(len(call.completion_ids) for call in calls),
        trained_tokens=tally.trained_tokens,
        merge_ratio=tally.row_calls / tally.rows if tally.rows else None,
        forks=_sorted(forks),
        refusals=_sorted(refusals),
        volatile=_sorted(Counter(rule for call in calls for rule in volatile_in(call.request))),
        cut_by_default=sum(_cut_by_default(call) for call in calls),
        logprob_gap=None if gaps is None else _joined([gaps[c.call_id] for c in calls if c.call_id in gaps]),
    )


def _cut_by_default(call: ModelCall) -> bool:
    if call.status != "complete" or call.finish_reason != "length":
        return False
    try:
        return recorded_request(call.dialect, call.request).max_tokens is None
    except RequestError:  # recorded by a release that read more than this one does
        return False


class Reader(Protocol):
    """The part of a renderer that reads sampled tokens."""

    @property
    def tokenizer(self) -> ChatTokenizer:
        """Of the model."""

    @property
    def stop_ids(self) -> Collection[int]:
        """Tokens that end an answer, and have no text in it."""


def of_another_model(calls: Sequence[ModelCall], reader: Reader) -> set[str]:
    """Ids of the calls whose sampled tokens this model's tokenizer reads as another text than was answered."""
    whole = [call for call in calls if call.status == "complete" and call.text]
    return {call.call_id for call in whole if _read(call, reader) != call.text.rstrip("\ufffd")}


def _read(call: ModelCall, reader: Reader) -> str | None:
    decoder = IncrementalDecoder(reader.tokenizer)
    try:
        text = decoder.feed([token for token in call.completion_ids if token not in reader.stop_ids])
        return (text + decoder.finish()).rstrip("\ufffd")
    except (ValueError, OverflowError):  # an id that this vocabulary does not have
        return None


class Scorer(Protocol):
    """The part of a sampler that recomputes."""

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        """Raw tempered logprobs [T] of the completion under a version."""


async def recomputed_gaps(
    calls: Sequence[ModelCall], scorer: Scorer, dropped: Collection[int] = (), without: Collection[str] = ()
) -> dict[str, LogprobGap]:
    """The gap of every call that trains, by call id; the versions that sampled them must be loaded.

    What `dropped` versions sampled can be recomputed by nobody and has no gap, nor have the calls `without`.
    """
    gaps: dict[str, LogprobGap] = {}
    trained = [c for own in _by_session(calls).values() for c in settle_kinds(own) if c.untrainable_reason is None]
    for call in trained:
        if call.call_id in without:
            continue
        parts = []
        for start, stop, version in _by_version(call):
            if version in dropped:
                continue
            found = await scorer.logprobs(
                [*call.prompt_ids, *call.completion_ids[:start]],
                call.completion_ids[start:stop],
                version=version,
                temperature=call.temperature if call.temperature > 0 else 1.0,
            )
            recorded = [value for value in call.logprobs[start:stop] if value is not None]
            apart = [abs(new - old) if new != old else 0.0 for new, old in zip(found, recorded, strict=True)]
            parts.append(LogprobGap(tokens=len(apart), largest=max(apart), mean=sum(apart) / len(apart)))
        if (joined := _joined(parts)) is not None:
            gaps[call.call_id] = joined
    return gaps


def versions_of(calls: Sequence[ModelCall]) -> list[int]:
    """The versions that sampled what these calls may train."""
    return sorted({version for call in calls if call.untrainable_reason is None for version in call.versions})


def _by_version(call: ModelCall) -> Iterator[tuple[int, int, int]]:
    """`(start, stop, version)` of each stretch of one version: a swap may come in the middle of an answer."""
    start = 0
    for version, stretch in groupby(call.versions):
        stop = start + len(list(stretch))
        yield start, stop, version
        start = stop


def _joined(gaps: Sequence[LogprobGap]) -> LogprobGap | None:
    tokens = sum(gap.tokens for gap in gaps)
    if not tokens:
        return None
    mean = sum(gap.mean * gap.tokens for gap in gaps) / tokens
    return LogprobGap(tokens=tokens, largest=max(gap.largest for gap in gaps), mean=mean)


def _by_session(calls: Sequence[ModelCall]) -> dict[str, list[ModelCall]]:
    sessions: dict[str, list[ModelCall]] = defaultdict(list)
    for call in calls:
        sessions[call.session_id].append(call)
    return sessions


def _name(call: ModelCall) -> str:
    return call.harness or "not recorded"


def _sorted(counts: Mapping[Any, int]) -> dict[str, int]:
    """Most frequent first."""
    return {str(name): number for name, number in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))}

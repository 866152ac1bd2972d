"""Rows laid out as prefix trees: what rows share stands in the sequence once, and a token sees its own row alone.

Rows of a group share their prompt, rows of forked episodes a stem; sharing nests. A layout is one sequence of segments
in depth-first order: a segment is a run of tokens that the same rows go through, and it continues its parent. Attention
goes segment by segment over the segment's path, so a layout costs the sum of its parts, whatever stands beside them.
A row's last token predicts nothing and is left out.
It must not know losses, weights or models.

Legend: L tokens of the sequence, N completion tokens of the rows, row after row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from practicum.types.training import Datum

# A beginning shorter than this is computed again rather than shared: every segment costs calls of its own.
_SHORTEST_SHARED = 8
# Longer continuations are cut into a chain, so that no mask has more rows than this.
_LONGEST_CONTINUATION = 512

Pair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, end) of the sequence that continue segment `parent` (-1: they begin a row) at place `depth`."""

    start: int
    end: int
    parent: int
    depth: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`ids_L`, their places in their own rows `positions_L`, the segments in order, and `keep_N`: where in the sequence
    the completion tokens are predicted. Rows that share a place both name it.
    """

    ids_L: torch.Tensor
    positions_L: torch.Tensor
    segments: tuple[Segment, ...]
    keep_N: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids_L)

    def path(self, index: int) -> list[int]:
        """The segments that segment `index` continues, outermost first."""
        found: list[int] = []
        while (index := self.segments[index].parent) >= 0:
            found.append(index)
        return found[::-1]

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""
        return Layout(self.ids_L.to(device), self.positions_L.to(device), self.segments, self.keep_N.to(device))


def layout_of(pairs: Sequence[Pair], *, shared: bool = True) -> Layout:
    """Prompts with their completions as prefix trees; `shared=False` gives every row a sequence of its own."""
    rows = [(*prompt, *completion)[:-1] if completion else () for prompt, completion in pairs]
    order = sorted((index for index, row in enumerate(rows) if row), key=lambda index: rows[index])
    grown = _Grown(rows)
    if shared:
        grown.grow(order)
    else:
        for index in order:
            grown.grow([index])
    keep = [
        grown.places(index)[len(prompt) - 1 :]
        for index, (prompt, completion) in enumerate(pairs)
        if completion
    ]  # fmt: skip
    return Layout(
        ids_L=torch.tensor(grown.ids, dtype=torch.long),
        positions_L=torch.tensor(grown.positions, dtype=torch.long),
        segments=tuple(grown.segments),
        keep_N=torch.cat(keep) if keep else torch.empty(0, dtype=torch.long),
    )


class _Grown:
    """A layout in the making: the segments so far, and the last one of every row."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self._rows = rows
        self._last: dict[int, int] = {}
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.segments: list[Segment] = []

    def grow(self, order: Sequence[int]) -> None:
        """Add rows, given in lexicographic order."""
        waiting = [(list(order), 0, -1)] if order else []
        while waiting:
            group, depth, parent = waiting.pop()
            first = self._rows[group[0]]
            common = common_beginning(first, self._rows[group[-1]])
            if len(first) == len(self._rows[group[-1]]) == common or common - depth >= _SHORTEST_SHARED:
                parent, depth = self._add(first[depth:common], parent, depth), common
            ended = [index for index in group if len(self._rows[index]) == common]
            branches = self._branches(group[len(ended) :], common)
            if depth == common:
                self._last.update(dict.fromkeys(ended, parent))
            elif ended:  # too short to share: those that end here stand for themselves
                branches.insert(0, ended)
            waiting += [(branch, depth, parent) for branch in reversed(branches)]

    def _branches(self, group: Sequence[int], place: int) -> list[list[int]]:
        return [list(branch) for _, branch in groupby(group, lambda index: self._rows[index][place])]

    def places(self, row: int) -> torch.Tensor:
        """Where the row's tokens stand in the sequence."""
        parts: list[torch.Tensor] = []
        index = self._last[row]
        while index >= 0:
            segment = self.segments[index]
            parts.append(torch.arange(segment.start, segment.end))
            index = segment.parent
        return torch.cat(parts[::-1])

    def _add(self, ids: tuple[int, ...], parent: int, depth: int) -> int:
        size = len(ids) if parent < 0 else _LONGEST_CONTINUATION
        for start in range(0, len(ids), size or 1):
            piece = ids[start : start + size]
            begin = len(self.ids)
            self.ids += piece
            self.positions += range(depth, depth + len(piece))
            self.segments.append(Segment(begin, begin + len(piece), parent, depth))
            parent, depth = len(self.segments) - 1, depth + len(piece)
        return parent


def common_beginning(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    most = min(len(one), len(other))
    return next((place for place in range(most) if one[place] != other[place]), most)


def micro_batches(batch: Sequence[Datum], budget_tokens: int) -> list[list[Datum]]:
    """Rows in lexicographic order, cut so that each piece's layouts stay within the budget.

    A piece may hold twice its longest row whatever the budget: else a long prompt would stand in every piece anew.
    """
    pieces: list[list[Datum]] = []
    sizes: dict[str, int] = {}
    before: dict[str, tuple[int, ...]] = {}
    for row in sorted(batch, key=lambda row: (*row.prompt_ids, *row.completion_ids)[:-1]):
        texts = {kind: (*prompt, *row.completion_ids)[:-1] for kind, prompt in prompts_of(row).items()}
        added = {kind: len(text) - common_beginning(before.get(kind, ()), text) for kind, text in texts.items()}
        total = {kind: sizes.get(kind, 0) + added.get(kind, 0) for kind in {*sizes, *added}}
        most = max(budget_tokens, 2 * max(map(len, texts.values())))
        if pieces and max(total.values()) <= most:
            pieces[-1].append(row)
            sizes, before = total, {**before, **texts}
        else:
            pieces.append([row])
            sizes, before = {kind: len(text) for kind, text in texts.items()}, texts
    return pieces


def prompts_of(row: Datum) -> dict[str, tuple[int, ...]]:
    """Every prompt the row is scored under."""
    found = {"own": row.prompt_ids, "teacher": row.teacher_prompt_ids, "contrast": row.contrast_prompt_ids}
    return {kind: prompt for kind, prompt in found.items() if prompt}

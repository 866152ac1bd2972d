"""Which shapes of a forward give a sequence the same bits whatever else is computed beside it.

A product over many rows is not the sum of what its rows are alone: libraries choose another kernel, another split of
the sum, another number of threads by the shape. So every forward has one of a few shapes: rows come in multiples of
`rows`, keys in multiples of `keys`, a prompt's chunk begins and ends at absolute positions. Which multiples are safe
depends on the processor, the library and the thread count, so it is found out by running one layer, once, before the
first job; where none is safe, sequences are computed one at a time, which needs no assumption.

Knows no jobs and no requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from practicum.engines.embedded.kv import BLOCK_TOKENS, PromptCache, SlotCache
from practicum.engines.embedded.step import Step

_ROWS = (1, 2, 4, 8)
_KEYS = (64, 128, BLOCK_TOKENS)
_QUERIES = 16
_MOST_KEYS = 2048
_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """`rows`: multiple of the sequences decoded together (0: one at a time, nothing beside it). `keys`: multiple of the
    positions attended to. `queries`: multiple of a prompt chunk's tokens (0: always a whole chunk, begun at its start).
    """

    rows: int
    keys: int
    queries: int

    def decode_rows(self, sequences: int) -> int:
        """Rows of a forward over so many sequences."""
        return _up(sequences, self.rows or 1)

    def decode_keys(self, positions: int) -> int:
        """Keys of a forward whose longest sequence has so many positions."""
        return _up(positions, self.keys)

    def chunk_rows(self, tokens: int, chunk: int) -> int:
        """Rows of a forward over so many tokens of a prompt."""
        return _up(tokens, self.queries) if self.queries else chunk


# Any shape at all: the fastest, and a neighbour may change the last bits.
FREE = Shapes(rows=1, keys=1, queries=1)
# Nothing assumed: each sequence alone, each chunk whole.
ALONE = Shapes(rows=0, keys=BLOCK_TOKENS, queries=0)


@torch.inference_mode()
def find_shapes(step: Step, *, vocabulary: int, most_rows: int, chunk: int, most_keys: int) -> Shapes:
    """The smallest safe multiples for up to `most_rows` sequences and `most_keys` positions, on this thread's setting.

    Deterministic: the same machine and thread count always find the same.
    """
    probe = _Probe(step, vocabulary, chunk, min(most_keys, _MOST_KEYS))
    queries = _QUERIES if chunk % _QUERIES == 0 and chunk > _QUERIES and probe.chunks_agree() else 0
    for rows in _ROWS:
        if probe.rows_agree(rows, most_rows):
            for keys in _KEYS:
                if probe.keys_agree(rows, keys):
                    return Shapes(rows=rows, keys=keys, queries=queries)
    return Shapes(rows=0, keys=ALONE.keys, queries=queries)


class _Probe:
    """Runs a step over made-up sequences and compares bits."""

    def __init__(self, step: Step, vocabulary: int, chunk: int, most_keys: int) -> None:
        self._step = step
        self._chunk = chunk
        self._most_keys = most_keys
        generator = torch.Generator().manual_seed(_SEED)
        self._ids = torch.randint(0, vocabulary, (chunk,), generator=generator)
        self._prompt = PromptCache(chunk)
        self._whole = self._piece(self._prompt, 0, chunk, chunk)

    def chunks_agree(self) -> bool:
        """Whether a token's logits, keys and values are the same in every piece of the first chunk."""
        size = self._chunk
        starts = {0, 1, size // 2 - 3, size // 2, size - _QUERIES}
        pieces = [(start, end) for start in starts for end in {start + 1, start + 9, start + _QUERIES, size}]
        for start, end in pieces:
            if not 0 <= start < end <= size:
                continue
            cache = PromptCache(size)
            if start:
                cache.start_from(self._prompt.kv, start)
            rows = _up(end - start, _QUERIES)
            if not torch.equal(self._piece(cache, start, end, rows), self._whole[start:end]):
                return False
            pairs = zip(cache.kv, self._prompt.kv, strict=True)
            if not all(torch.equal(a[:, :, :end], b[:, :, :end]) for x, y in pairs for a, b in zip(x, y, strict=True)):
                return False
        return True

    def rows_agree(self, rows: int, most_rows: int) -> bool:
        """Whether a sequence's logits are the same at every place of every batch of a multiple of `rows`."""
        reference = self._decode(_up(min(max(most_rows, 8), 64), rows), BLOCK_TOKENS)[0]
        sizes = [*range(rows, 8 * rows + 1, rows), *(_up(size, rows) for size in (12, 16, 24, 32, 48, 64))]
        return all(
            bool((self._decode(size, BLOCK_TOKENS) == reference).all())
            for size in sorted(set(sizes))
            if size <= max(_up(most_rows, rows), rows)
        )

    def keys_agree(self, rows: int, keys: int) -> bool:
        """Whether more masked keys behind a sequence leave its logits as they are, for short and long sequences."""
        for length in self._lengths(keys):
            ends = [end for end in _ends(length + 1, keys) if end <= max(self._most_keys, _up(length + 1, keys))]
            found = [self._decode(rows, end, length=length)[0] for end in ends]
            if not all(torch.equal(one, found[0]) for one in found):
                return False
        return True

    def _lengths(self, keys: int) -> Iterable[int]:
        return sorted({min(length, self._most_keys - 1) for length in (keys // 2, 2 * keys - 1, 400, 1000)})

    def _piece(self, cache: PromptCache, start: int, end: int, rows: int) -> torch.Tensor:
        """Logits [end - start, V] of a piece of the first chunk, padded to `rows` rows."""
        at = torch.arange(start, start + rows).clamp(max=end - 1)
        cache.aim(end - start, self._chunk)
        mask = torch.arange(self._chunk)[None] <= at[:, None]
        keep = torch.arange(_up(end - start, 8)).clamp(max=end - start - 1)
        logits = self._step(self._ids[at][None], at[None], mask[None, None], cache, keep)[0, : end - start]
        cache.filled = end
        return logits

    def _decode(self, rows: int, end: int, *, length: int | None = None) -> torch.Tensor:
        """Logits [rows, V] of one sequence of `length` positions, repeated."""
        length = min(self._chunk, end) - 1 if length is None else length
        cache = SlotCache()
        filled = min(length, self._chunk)
        cache.reserve_like(self._prompt.kv, rows, end)
        for keys, values in cache.kv:
            for store, source in zip((keys, values), self._prompt.kv[0], strict=True):
                repeated = source[:, :, :filled].repeat(1, 1, -(-length // max(filled, 1)), 1)[:, :, :length]
                store[:, :, :length] = repeated
        lengths = torch.full((rows,), length)
        cache.aim(0, lengths, rows=rows, end=end)
        mask = (torch.arange(end)[None] <= lengths[:, None])[:, None, None]
        ids = self._ids[:1].expand(rows, 1).contiguous()
        return self._step(ids, lengths[:, None], mask, cache, 1)[:, -1]


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _ends(least: int, keys: int) -> list[int]:
    """Key counts to compare from the least possible one on: every block at first, then ever fewer."""
    first = _up(least, keys)
    return [first + keys * blocks for blocks in (0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 23)]

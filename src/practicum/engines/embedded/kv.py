"""Keys and values of sequences, kept where transformers' attention asks for them.

Shapes: L layers, S slots, H key/value heads, C capacity, D head size, P prompt, Q new tokens. A sequence's token at
position p stands at index p, left-aligned, so a shorter neighbour only leaves masked, finite entries behind its end.
Keys and values belong to the version that computed them and are never handed to another.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

BLOCK_TOKENS = 256

Layers = list[tuple[torch.Tensor, torch.Tensor]]


class PromptCache(Cache):  # type: ignore[misc]
    """One sequence while its prompt is processed, chunk by chunk: `[1, H, P, D]` a layer, `filled` tokens so far.

    `length` is P, at least the tokens to come; what is behind `filled` is zero. `aim` bounds what the next step writes
    and sees; without it a step writes all of its tokens and sees up to their end.
    """

    def __init__(self, length: int) -> None:
        super().__init__(layers=[])
        self.kv: Layers = []
        self.length = length
        self.filled = 0
        self._tokens: int | None = None
        self._end = 0

    def aim(self, tokens: int, end: int) -> None:
        """The next step's first `tokens` are real, the rest is padding that leaves no trace; it sees `end` keys."""
        self._tokens, self._end = tokens, end

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append `[1, H, Q, D]` behind `filled`; returns keys and values up to the new end, or the one aimed at."""
        if layer_idx == len(self.kv):
            heads, size = key_states.shape[1], key_states.shape[3]
            shape = (1, heads, self.length, size)
            self.kv.append((key_states.new_zeros(shape), value_states.new_zeros((*shape[:3], value_states.shape[3]))))
        tokens = key_states.shape[2] if self._tokens is None else self._tokens
        end = self.filled + tokens
        for store, new in zip(self.kv[layer_idx], (key_states, value_states), strict=True):
            store[:, :, self.filled : end] = new[:, :, :tokens]
        keys, values = self.kv[layer_idx]
        end = end if self._tokens is None else self._end
        return keys[:, :, :end], values[:, :, :end]

    def start_from(self, kv: Layers, tokens: int) -> None:
        """Take over the first `tokens` positions of another sequence of the same version."""
        for source in kv:
            pair = tuple(tensor.new_zeros((1, tensor.shape[1], self.length, tensor.shape[3])) for tensor in source)
            for mine, theirs in zip(pair, source, strict=True):
                mine[:, :, :tokens] = theirs[:, :, :tokens]
            self.kv.append((pair[0], pair[1]))
        self.filled = tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far."""
        return self.filled


class SlotCache(Cache):  # type: ignore[misc]
    """The running sequences of one version: `[S, H, C, D]` a layer, slots 0..n-1 in use without gaps.

    Before a step `aim` says which slots run and where each writes. Capacity grows by blocks, slots by doubling.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.kv: Layers = []
        self._slots = slice(0, 0)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._positions = torch.zeros(0, dtype=torch.long)
        self._end = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Slots and capacity allocated."""
        return (self.kv[0][0].shape[0], self.kv[0][0].shape[2]) if self.kv else (0, 0)

    def reserve_like(self, source: Layers, slots: int, tokens: int) -> None:
        """`reserve` with the heads and sizes of another sequence's keys and values."""
        if not self.kv:
            self.kv = [(k.new_zeros((0, *k.shape[1:])), v.new_zeros((0, *v.shape[1:]))) for k, v in source]
        self.reserve(slots, tokens)

    def place(self, slot: int, source: Layers, tokens: int) -> None:
        """Copy a prompt's `tokens` positions into `slot`, growing as needed."""
        self.reserve_like(source, slot + 1, tokens + 1)
        for mine, theirs in zip(self.kv, source, strict=True):
            for store, new in zip(mine, theirs, strict=True):
                store[slot, :, :tokens] = new[0, :, :tokens]

    def reserve(self, slots: int, tokens: int) -> None:
        """Make room for `slots` sequences of `tokens` tokens."""
        have_slots, have_tokens = self.shape
        if slots <= have_slots and tokens <= have_tokens:
            return
        want_slots = have_slots if slots <= have_slots else max(slots, 2 * have_slots)
        want_tokens = max(have_tokens, -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS)

        def grown(old: torch.Tensor) -> torch.Tensor:
            # Zeros, not whatever memory held: a masked NaN would still poison the weighted sum.
            new = old.new_zeros((want_slots, old.shape[1], want_tokens, old.shape[3]))
            new[: old.shape[0], :, : old.shape[2]] = old
            return new

        self.kv = [(grown(keys), grown(values)) for keys, values in self.kv]

    def vacate(self, slot: int, last: int, tokens_of_last: int) -> None:
        """Free `slot` and keep the slots without gaps: sequence `last` (the highest slot in use) moves into it."""
        for pair in self.kv:
            for store in pair:
                store[slot].zero_()
                if slot != last:
                    store[slot, :, :tokens_of_last] = store[last, :, :tokens_of_last]
                    store[last].zero_()
        if last == 0:
            self.kv = []

    def aim(self, first: int, positions: torch.Tensor, *, rows: int | None = None, end: int | None = None) -> None:
        """The next step runs n slots from `first` on, each writing its token at `positions: [n]`.

        It has `rows` rows, n unless given; those behind the n read what stands in their slots and write nothing. It
        sees `end` keys, up to the last position unless given.
        """
        self._slots = slice(first, first + (rows or len(positions)))
        self._rows = torch.arange(first, first + len(positions))
        self._positions = positions
        self._end = end or int(positions.max()) + 1

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token a slot, `[rows, H, 1, D]`; returns views `[rows, H, end, D]`."""
        keys, values = self.kv[layer_idx]
        keys[self._rows, :, self._positions] = key_states[: len(self._rows), :, 0]
        values[self._rows, :, self._positions] = value_states[: len(self._rows), :, 0]
        return keys[self._slots, :, : self._end], values[self._slots, :, : self._end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Index behind the last position that attention sees."""
        return self._end

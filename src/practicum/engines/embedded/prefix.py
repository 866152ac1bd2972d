"""Keys and values of prompts already processed, reused by prompts that begin alike: the next turn of a conversation,
or the other samples of a group.

An entry belongs to one version's weights (the object, not the number) and dies with them: reusing keys and values after
a weight update would sample from neither version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import torch

from practicum.engines.embedded.kv import Layers, PromptCache
from practicum.engines.embedded.weights import ServedVersion

_WORTH_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A processed prompt: its keys and values, and the logits `[1, V]` after its last token."""

    served: ServedVersion
    ids: tuple[int, ...]
    kv: Layers
    logits: torch.Tensor

    @property
    def bytes(self) -> int:
        """Memory held."""
        tensors = [self.logits, *(tensor for pair in self.kv for tensor in pair)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class PrefixCache:
    """Least recently used entries within a budget of bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._keys = count()
        self.reused_tokens = 0

    def whole(self, served: ServedVersion, ids: tuple[int, ...]) -> tuple[PromptCache, torch.Tensor] | None:
        """Cache and logits of exactly this prompt, if it was processed before. The tensors are shared: read only."""
        self._forget_retired()
        for key, entry in self._entries.items():
            if entry.served is served and entry.ids == ids:
                self._entries.move_to_end(key)
                self.reused_tokens += len(ids)
                cache = PromptCache(len(ids))
                cache.kv, cache.filled = entry.kv, len(ids)
                return cache, entry.logits
        return None

    def start(
        self, served: ServedVersion, ids: Sequence[int], *, most: int, multiple: int = 1, room: int = 0
    ) -> PromptCache:
        """A cache for `ids` that begins with the longest known prefix: a `multiple` of tokens, at most `most`.

        It has room for `ids`, or for `room` tokens if they are more.
        """
        self._forget_retired()
        cache = PromptCache(max(len(ids), room))
        best, best_tokens = None, _WORTH_TOKENS - 1
        for key, entry in self._entries.items():
            if entry.served is not served:
                continue
            common = _common(entry.ids, ids, most) // multiple * multiple
            if common > best_tokens:
                best, best_tokens = key, common
        if best is not None:
            self._entries.move_to_end(best)
            cache.start_from(self._entries[best].kv, best_tokens)
            self.reused_tokens += best_tokens
        return cache

    def keep(self, served: ServedVersion, ids: tuple[int, ...], kv: Layers, logits: torch.Tensor) -> None:
        """Remember a processed prompt. What it extends is forgotten."""
        if kv and kv[0][0].shape[2] > len(ids):  # a view would hold the room behind it too
            kv = [(k[:, :, : len(ids)].clone(), v[:, :, : len(ids)].clone()) for k, v in kv]
        new = Entry(served, ids, kv, logits)
        if new.bytes > self._budget or served.retired:
            return
        for key, entry in list(self._entries.items()):
            if entry.served is served and ids[: len(entry.ids)] == entry.ids:
                del self._entries[key]
        self._entries[next(self._keys)] = new
        while sum(entry.bytes for entry in self._entries.values()) > self._budget:
            self._entries.popitem(last=False)

    def _forget_retired(self) -> None:
        for key, entry in list(self._entries.items()):
            if entry.served.retired:
                del self._entries[key]


def _common(known: Sequence[int], ids: Sequence[int], most: int) -> int:
    end = min(len(known), len(ids), most)
    if tuple(known[:end]) == tuple(ids[:end]):
        return end
    return next(index for index in range(end) if known[index] != ids[index])

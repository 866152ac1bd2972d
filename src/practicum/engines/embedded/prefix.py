"""Keys and values of prompts already processed, reused by prompts that begin alike: the next turn of a conversation,
or the other samples of a group.

An entry belongs to one version's weights (the object, not the number) and dies with them: reusing keys and values after
a weight update would sample from neither version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

from practicum.engines.embedded.kv import Layers, PromptCache
from practicum.engines.embedded.weights import ServedVersion

_WORTH_TOKENS = 16


class PrefixCache:
    """Least recently used entries within a budget of bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._entries: OrderedDict[int, tuple[ServedVersion, tuple[int, ...], Layers]] = OrderedDict()
        self._keys = count()
        self.reused_tokens = 0

    def start(self, served: ServedVersion, ids: Sequence[int], *, most: int) -> PromptCache:
        """A cache for `ids` that begins with the longest known prefix, of at most `most` tokens."""
        self._forget_retired()
        cache = PromptCache(len(ids))
        best, best_tokens = None, _WORTH_TOKENS - 1
        for key, (owner, known, _) in self._entries.items():
            if owner is served and (common := _common(known, ids, most)) > best_tokens:
                best, best_tokens = key, common
        if best is not None:
            self._entries.move_to_end(best)
            cache.start_from(self._entries[best][2], best_tokens)
            self.reused_tokens += best_tokens
        return cache

    def keep(self, served: ServedVersion, ids: tuple[int, ...], kv: Layers) -> None:
        """Remember a processed prompt. What it extends is forgotten."""
        if _bytes(kv) > self._budget or served.retired:
            return
        for key, (owner, known, _) in list(self._entries.items()):
            if owner is served and ids[: len(known)] == known:
                del self._entries[key]
        self._entries[next(self._keys)] = (served, ids, kv)
        while sum(_bytes(layers) for _, _, layers in self._entries.values()) > self._budget:
            self._entries.popitem(last=False)

    def _forget_retired(self) -> None:
        for key, (owner, _, _) in list(self._entries.items()):
            if owner.retired:
                del self._entries[key]


def _common(known: Sequence[int], ids: Sequence[int], most: int) -> int:
    end = min(len(known), len(ids), most)
    if tuple(known[:end]) == tuple(ids[:end]):
        return end
    return next(index for index in range(end) if known[index] != ids[index])


def _bytes(kv: Layers) -> int:
    return sum(tensor.numel() * tensor.element_size() for pair in kv for tensor in pair)

"""Attention over a prefix-tree layout, segment by segment: exact, and no query meets a key outside its own row.

A segment that begins a row is plainly causal. One that continues others sees all of its path and, causally, itself; its
keys and values are put together again for the backward pass, because kept for every segment they would cost the path's
length each time. The same function serves our own forward and transformers' modules, as an attention implementation.

Legend: L tokens of the sequence, H query heads, J key/value heads, D head size, Q and K tokens of queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from practicum.engines.embedded.layout import Layout
from practicum.errors import Unsupported

IMPLEMENTATION = "practicum_tree"


class TreeAttention:
    """Attention over one layout; what does not depend on the layer is worked out once."""

    def __init__(self, layout: Layout, *, dtype: torch.dtype, device: torch.device) -> None:
        self._sizes = [segment.end - segment.start for segment in layout.segments]
        self._paths = [layout.path(index) for index in range(len(layout.segments))]
        masks: dict[tuple[int, int], torch.Tensor] = {}
        self._masks: list[torch.Tensor | None] = []
        for segment, size in zip(layout.segments, self._sizes, strict=True):
            if segment.depth and (shape := (size, segment.depth + size)) not in masks:
                seen = torch.ones(shape, dtype=torch.bool).tril(segment.depth)
                masks[shape] = torch.zeros(shape).masked_fill(~seen, -torch.inf).to(device, dtype)
            self._masks.append(masks[size, segment.depth + size] if segment.depth else None)

    def __call__(
        self, q_1HLD: torch.Tensor, k_1JLD: torch.Tensor, v_1JLD: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        """Mixed values `[1, H, L, D]`."""
        if len(self._sizes) == 1:
            return _mixed(q_1HLD, k_1JLD, v_1JLD, None, scale)
        queries, keys, values = (torch.split(each, self._sizes, dim=2) for each in (q_1HLD, k_1JLD, v_1JLD))
        mixed = []
        for index, (path, mask) in enumerate(zip(self._paths, self._masks, strict=True)):
            if mask is None:
                mixed.append(_mixed(queries[index], keys[index], values[index], None, scale))
            else:
                chain = [*path, index]
                parts = (*(keys[place] for place in chain), *(values[place] for place in chain))
                mixed.append(_OverPath.apply(queries[index], mask, scale, *parts))  # type: ignore[no-untyped-call]
        return torch.cat(mixed, dim=2)


class _OverPath(torch.autograd.Function):
    """Attention over keys and values that come in pieces: so many of keys, then as many of values."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, mask_QK: torch.Tensor, scale: float | None, *parts: torch.Tensor
    ) -> torch.Tensor:
        k, v = _halves(parts)
        ctx.scale, ctx.pieces = scale, len(parts)
        if not _has_kernel(q, v):
            ctx.save_for_backward(q, mask_QK, *parts)
            return _mixed(q, k, v, mask_QK, scale)
        mixed, log_sums = _KERNEL(q, k, v, attn_mask=mask_QK[None, None], scale=scale)
        ctx.save_for_backward(q, mask_QK, *parts, mixed, log_sums)
        return mixed  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, mask_QK, *kept = ctx.saved_tensors
        parts, known = kept[: ctx.pieces], kept[ctx.pieces :]
        k, v = _halves(parts)
        if known:
            dq, dk, dv = _BACKWARD(
                gradient, q, k, v, *known, 0.0, False, attn_mask=mask_QK[None, None], scale=ctx.scale
            )
        else:
            leaves = [each.detach().requires_grad_() for each in (q, k, v)]
            with torch.enable_grad():
                mixed = _mixed(leaves[0], leaves[1], leaves[2], mask_QK, ctx.scale)
            dq, dk, dv = torch.autograd.grad(mixed, leaves, gradient)
        sizes = [part.shape[2] for part in parts[: len(parts) // 2]]
        return dq, None, None, *torch.split(dk, sizes, dim=2), *torch.split(dv, sizes, dim=2)


def _halves(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    half = len(parts) // 2
    return torch.cat([*parts[:half]], dim=2), torch.cat([*parts[half:]], dim=2)


# What torch's own attention calls on a CPU; called directly, its result can be kept without its keys and values.
_KERNEL: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_BACKWARD: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def _has_kernel(q: torch.Tensor, v: torch.Tensor) -> bool:
    alike = q.device.type == "cpu" and q.shape[-1] == v.shape[-1]
    return alike and _KERNEL is not None and _BACKWARD is not None


def _mixed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask_QK: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    native = mask_QK is None or q.device.type == "cpu"
    if groups > 1 and not native:  # with a mask, the fast kernels elsewhere take as many key heads as query heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask_QK, is_causal=mask_QK is None, scale=scale, enable_gqa=groups > 1 and native
    )


def _for_modules(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    tree: TreeAttention | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface; `tree` comes with the call of the model."""
    unknown = [name for name in ("softcap", "position_bias", "s_aux") if others.get(name) is not None]
    if tree is None or attention_mask is not None or unknown:
        raise Unsupported(f"{type(module).__name__} cannot attend over prefix trees: {unknown or 'no tree came'}.")
    return tree(query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _for_modules)

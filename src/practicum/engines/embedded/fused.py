"""Products with their neighbours and trained factors, as autograd functions that keep little and compute it again.

The weight of a product is what it multiplies with, whatever trains: `W` itself (full weights), or `W + s B A` merged
beforehand, with A and B trained through it:

    y = x W^T        dx = dy W        dW = dy^T x        dB = s dy^T (x A^T)        dA = s (dy B)^T x

Several modules that read the same x are one product of their stacked weights; each has its own trained tensors, whose
gradients come from its slice of dy. Small products and elementwise values are computed again rather than kept.

Legend: T tokens, I inputs, O outputs of the stack, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Grad = torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Stack:
    """The modules of one product: `weight_OI` and `bias_O` stacked, rows of each in `sizes`, and what trains.

    `factors`: A, B of each module in turn, or nothing. `own`: the weight of each module, then the bias of each where
    there are any, as views of the stacks, or nothing. `merged`: whether the weight holds the factors already.
    """

    weight_OI: torch.Tensor
    bias_O: torch.Tensor | None
    sizes: list[int]
    factors: tuple[torch.Tensor, ...] = ()
    scaling: float = 1.0
    merged: bool = True
    own: tuple[torch.Tensor, ...] = ()

    @property
    def trained(self) -> tuple[torch.Tensor, ...]:
        """The tensors that get a gradient."""
        return self.own or (self.factors if self.merged else ())

    def product(self, x_TI: torch.Tensor) -> torch.Tensor:
        """y, `[T, O]`, without a graph of its own."""
        y_TO = functional.linear(x_TI, self.weight_OI, self.bias_O)
        if self.factors and not self.merged:
            parts = torch.split(y_TO, self.sizes, dim=-1)
            for part, first, second in zip(parts, self.factors[::2], self.factors[1::2], strict=True):
                part += self.scaling * functional.linear(functional.linear(x_TI, first.to(x_TI)), second.to(x_TI))
        return y_TO

    def gradients(self, dy_TO: torch.Tensor, x_TI: torch.Tensor) -> tuple[Grad, ...]:
        """Those of `trained`, in its order."""
        if self.own:
            dw_OI = dy_TO.T @ x_TI
            biases = () if self.bias_O is None else torch.split(dy_TO.sum(0), self.sizes)
            return (*torch.split(dw_OI, self.sizes), *biases)
        if not self.trained:
            return ()
        firsts, seconds = self.factors[::2], self.factors[1::2]
        rank = firsts[0].shape[0]
        inner_TR = functional.linear(x_TI, torch.cat(firsts).to(x_TI)) * self.scaling
        slices = torch.split(dy_TO, self.sizes, dim=-1)
        back_TR = torch.cat([dy @ second.to(dy) for dy, second in zip(slices, seconds, strict=True)], dim=-1)
        da_RI = (back_TR * self.scaling).T @ x_TI
        found: list[Grad] = []
        for first, second, dy, inner, da in zip(
            firsts, seconds, slices, torch.split(inner_TR, rank, dim=-1), torch.split(da_RI, rank), strict=True
        ):
            found += [da.to(first.dtype), (inner.T @ dy).T.to(second.dtype)]
        return tuple(found)


class Product(torch.autograd.Function):
    """x W^T."""

    @staticmethod
    def forward(ctx: Any, x_TI: torch.Tensor, stack: Stack, *trained: torch.Tensor) -> torch.Tensor:
        """y; keeps what the class says."""
        ctx.save_for_backward(x_TI)
        ctx.stack = stack
        return stack.product(x_TI)

    @staticmethod
    def backward(ctx: Any, dy_TO: torch.Tensor) -> tuple[Grad, ...]:
        """Gradients of the arguments, in their order."""
        (x_TI,) = ctx.saved_tensors
        dx_TI = dy_TO @ ctx.stack.weight_OI if ctx.needs_input_grad[0] else None
        return dx_TI, None, *ctx.stack.gradients(dy_TO, x_TI)


class NormProduct(torch.autograd.Function):
    """RMSNorm(x) W^T; keeps x alone."""

    @staticmethod
    def forward(
        ctx: Any, x_TI: torch.Tensor, norm_I: torch.Tensor, eps: float, stack: Stack, *trained: torch.Tensor
    ) -> torch.Tensor:
        """y; keeps what the class says."""
        ctx.save_for_backward(x_TI, norm_I)
        ctx.eps, ctx.stack = eps, stack
        return stack.product(functional.rms_norm(x_TI, norm_I.shape, norm_I, eps))

    @staticmethod
    def backward(ctx: Any, dy_TO: torch.Tensor) -> tuple[Grad, ...]:
        """Gradients of the arguments, in their order."""
        x_TI, norm_I = ctx.saved_tensors
        wide_TI = x_TI.float()
        rate_T1 = torch.rsqrt(wide_TI.square().mean(-1, keepdim=True) + ctx.eps)
        unit_TI = wide_TI * rate_T1
        gradients = ctx.stack.gradients(dy_TO, (unit_TI * norm_I).to(x_TI.dtype)) if ctx.stack.trained else ()
        if not ctx.needs_input_grad[0] and not ctx.needs_input_grad[1]:
            return None, None, None, None, *gradients
        dn_TI = (dy_TO @ ctx.stack.weight_OI).float()
        dnorm_I = (dn_TI * unit_TI).sum(0).to(norm_I.dtype) if ctx.needs_input_grad[1] else None
        dn_TI = dn_TI.mul_(norm_I)
        inward_T1 = (dn_TI * unit_TI).mean(-1, keepdim=True)
        dx_TI = dn_TI.sub_(unit_TI.mul_(inward_T1)).mul_(rate_T1).to(x_TI.dtype)
        return dx_TI, dnorm_I, None, None, *gradients


class SwigluProduct(torch.autograd.Function):
    """(silu(g) * u) W^T, where g and u lie side by side; keeps them alone."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor, stack: Stack, *trained: torch.Tensor) -> torch.Tensor:
        """y; keeps what the class says."""
        ctx.save_for_backward(gate_up)
        ctx.stack = stack
        gate, up = gate_up.chunk(2, dim=-1)
        return stack.product(functional.silu(gate).mul_(up))

    @staticmethod
    def backward(ctx: Any, dy_TO: torch.Tensor) -> tuple[Grad, ...]:
        """Gradients of the arguments, in their order."""
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        dact = dy_TO @ ctx.stack.weight_OI
        sigmoid = gate.sigmoid()
        silu = sigmoid * gate
        gradients = ctx.stack.gradients(dy_TO, silu * up) if ctx.stack.trained else ()
        both = torch.empty_like(gate_up)
        dgate, dup = both.chunk(2, dim=-1)
        torch.mul(dact, silu, out=dup)
        # d silu(g) / dg = sigmoid + silu (1 - sigmoid)
        slope = silu.addcmul_(silu, sigmoid, value=-1).add_(sigmoid)
        torch.mul(dact.mul_(up), slope, out=dgate)
        return both, None, *gradients


class Rotation(torch.autograd.Function):
    """Rotary position code on the first heads of each row, in place: x cos + [-high, low] sin; the rest stays."""

    @staticmethod
    def forward(ctx: Any, joined_TO: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, width: int) -> Any:
        """y; keeps what the class says."""
        ctx.save_for_backward(cos_TD, sin_TD)
        ctx.width = width
        ctx.mark_dirty(joined_TO)
        low, high, cos, sin = _rotary(joined_TO, cos_TD, sin_TD, width)
        lifted = torch.cat([high * sin[0], low * sin[1]], dim=-1)
        _turn(low, high, cos, lifted, -1)
        return joined_TO

    @staticmethod
    def backward(ctx: Any, gradient_TO: torch.Tensor) -> tuple[Grad, ...]:
        """Gradients of the arguments, in their order."""
        cos_TD, sin_TD = ctx.saved_tensors
        gradient_TO = gradient_TO.clone()
        low, high, cos, sin = _rotary(gradient_TO, cos_TD, sin_TD, ctx.width)
        lifted = torch.cat([high * sin[1], low * sin[0]], dim=-1)
        _turn(low, high, cos, lifted, 1)
        return gradient_TO, None, None, None


def _rotary(x_TO: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, width: int) -> Any:
    """Views of the rotated heads' halves `[T, heads, D/2]`, and the tables' halves `[T, 1, D/2]`."""
    size = cos_TD.shape[-1]
    heads = x_TO[:, :width].view(len(x_TO), width // size, size)
    tables = [table[:, None].chunk(2, dim=-1) for table in (cos_TD, sin_TD)]
    return *heads.chunk(2, dim=-1), *tables


def _turn(low: torch.Tensor, high: torch.Tensor, cos: Any, lifted: torch.Tensor, sign: int) -> None:
    for part, table, other, factor in zip((low, high), cos, lifted.chunk(2, dim=-1), (sign, -sign), strict=True):
        part.mul_(table).add_(other, alpha=factor)


def rotated(joined_TO: torch.Tensor, cos_TD: torch.Tensor, sin_TD: torch.Tensor, width: int) -> torch.Tensor:
    """Rotary position code on the first `width` outputs, in place; forms of it that rotate whole heads."""
    return Rotation.apply(joined_TO, cos_TD, sin_TD, width)  # type: ignore[no-untyped-call,no-any-return]


def product(x: torch.Tensor, stack: Stack) -> torch.Tensor:
    """x W^T."""
    return Product.apply(x, stack, *stack.trained)  # type: ignore[no-untyped-call,no-any-return]


def norm_product(x: torch.Tensor, norm: torch.Tensor, eps: float, stack: Stack) -> torch.Tensor:
    """RMSNorm(x) W^T."""
    return NormProduct.apply(x, norm, eps, stack, *stack.trained)  # type: ignore[no-untyped-call,no-any-return]


def swiglu_product(gate_up: torch.Tensor, stack: Stack) -> torch.Tensor:
    """(silu(g) * u) W^T."""
    return SwigluProduct.apply(gate_up, stack, *stack.trained)  # type: ignore[no-untyped-call,no-any-return]


def joined(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """The parameters' values, one below the other, as one tensor that they become views of; where they lie so already,
    the tensor that is there.
    """
    rows = [len(each) for each in parameters]
    whole = _adjacent(parameters)
    if whole is None:
        whole = torch.cat([each.detach() for each in parameters])
        for parameter, part in zip(parameters, torch.split(whole, rows), strict=True):
            parameter.data = part
    return whole


def _adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    first = tensors[0]
    place = first.storage_offset()
    for tensor in tensors:
        alike = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not alike or not tensor.is_contiguous() or tensor.storage_offset() != place:
            return None
        place += tensor.numel()
    shape = (sum(map(len, tensors)), *first.shape[1:])
    return first.detach().as_strided(shape, first.stride())

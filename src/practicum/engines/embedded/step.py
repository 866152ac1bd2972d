"""One forward of a served policy over caches that the scheduler owns: `FusedStep` where it fits, else `ModuleStep`.

The fused step runs the same arithmetic as the transformers module with fewer, larger operations: one product for
queries, keys and values, one for gate and up, and at one token a sequence no copy of keys and values for the query
heads that share them. It is for decoder layers of Llama's make (Llama, Mistral, Qwen 2, Qwen 3); every other model runs
as the module that it is.

On a CPU in float32 its weights are also held in oneDNN's blocked layout: at few rows a product reads memory once,
where the plain one rearranges the weight each time and takes up to three times as long. The plain layout is then not
held here.

Legend: B sequences, Q new tokens of each, K positions attended to, H query heads, J key/value heads, D head size,
E hidden size, N kept positions, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.nn import functional

from practicum.engines.embedded.fused import joined

LLAMA_LIKE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


class Step(Protocol):
    """One forward of a policy."""

    def __call__(
        self,
        ids_BQ: torch.Tensor,
        positions_BQ: torch.Tensor,
        mask_B1QK: torch.Tensor,
        cache: Any,
        keep: torch.Tensor | int,
    ) -> torch.Tensor:
        """Logits [B, N, V] of the kept positions, or of the last `keep`; keys and values go through `cache.update`."""

    def first_layer(self) -> Step:
        """A step with products of the same shapes and, where it can be cut, only one layer."""


def step_of(model: Any, *, packed: bool = True, base: Step | None = None) -> Step:
    """The fastest step that is exact for `model`. Parameters replaced or written to later are not seen.

    `packed`: hold a blocked copy of the linear weights where that is faster. `base`: the step of a model that shares
    its output head, whose blocked copy is then shared too.
    """
    if type(model).__name__ in LLAMA_LIKE and model.config.hidden_act == "silu":
        return FusedStep(model, packed=packed, base=base if isinstance(base, FusedStep) else None)
    return ModuleStep(model)


class ModuleStep:
    """The transformers module as it is."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def first_layer(self) -> Step:
        """The whole module: it cannot be cut."""
        return self

    def __call__(
        self,
        ids_BQ: torch.Tensor,
        positions_BQ: torch.Tensor,
        mask_B1QK: torch.Tensor,
        cache: Any,
        keep: torch.Tensor | int,
    ) -> torch.Tensor:
        """See `Step`."""
        output = self._model(
            input_ids=ids_BQ,
            position_ids=positions_BQ,
            attention_mask=mask_B1QK,
            cache=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits
        return logits


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: torch.Tensor
    bias: torch.Tensor | None
    blocked: bool = False

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.blocked:
            return functional.linear(x, self.weight, self.bias)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product

    def packed(self) -> _Linear:
        """The same with its weight in blocked layout, where torch has the product for it."""
        fits = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32
        available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if not (fits and available and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
            return self
        return replace(self, weight=torch.ops.mkldnn._reorder_linear_weight(self.weight.detach()), blocked=True)


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: _Norm
    queries_keys_values: _Linear
    query_norm: _Norm | None
    key_norm: _Norm | None
    out: _Linear
    before_mlp: _Norm
    gate_up: _Linear
    down: _Linear


class FusedStep:
    """Decoder layers of Llama's make, over the model's own tensors."""

    def __init__(self, model: Any, *, packed: bool = True, base: FusedStep | None = None) -> None:
        config = model.config
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._embed = model.model.embed_tokens.weight
        head = model.get_output_embeddings()
        self._plain_head = head
        shared = base is not None and base._plain_head.weight is head.weight and base._plain_head.bias is head.bias
        self._head: _Linear = base._head if base is not None and shared else _linear(head, packed)
        self._rotary = model.model.rotary_emb
        self._layers = [_layer(layer, packed) for layer in model.model.layers]
        self._norm = _norm(model.model.norm)

    @property
    def packed(self) -> bool:
        """Whether the layers' weights are held here alone, in blocked layout."""
        return all(layer.down.blocked for layer in self._layers)

    def first_layer(self) -> FusedStep:
        """This step with one layer: products of the same shapes, in a fraction of the time."""
        cut = copy.copy(self)
        cut._layers = self._layers[:1]
        return cut

    def __call__(
        self,
        ids_BQ: torch.Tensor,
        positions_BQ: torch.Tensor,
        mask_B1QK: torch.Tensor,
        cache: Any,
        keep: torch.Tensor | int,
    ) -> torch.Tensor:
        """See `Step`."""
        x_BQE = functional.embedding(ids_BQ, self._embed)
        cos, sin = (table.unsqueeze(2) for table in self._rotary(x_BQE, positions_BQ))
        low, high = sin.chunk(2, dim=-1)
        turned = torch.cat([-low, high], dim=-1)
        if mask_B1QK.dtype == torch.bool:  # once here, instead of in every layer's attention
            mask_B1QK = torch.zeros_like(mask_B1QK, dtype=x_BQE.dtype).masked_fill_(~mask_B1QK, -math.inf)
        for index, layer in enumerate(self._layers):
            x_BQE += self._attend(layer, index, layer.before_attention(x_BQE), cos, turned, mask_B1QK, cache)
            gate, up = layer.gate_up(layer.before_mlp(x_BQE)).chunk(2, dim=-1)
            x_BQE += layer.down(functional.silu(gate).mul_(up))
        kept_BNE = x_BQE[:, -keep:] if isinstance(keep, int) else x_BQE[:, keep]
        return self._head(self._norm(kept_BNE))

    def _attend(
        self,
        layer: _Layer,
        index: int,
        x_BQE: torch.Tensor,
        cos: torch.Tensor,
        turned_sin: torch.Tensor,
        mask_B1QK: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        batch, length, _ = x_BQE.shape
        heads, kv_heads = self._heads, self._kv_heads
        qkv = layer.queries_keys_values(x_BQE).view(batch, length, heads + 2 * kv_heads, self._size)
        turning, v = qkv[:, :, : heads + kv_heads], qkv[:, :, heads + kv_heads :]
        if layer.query_norm is not None and layer.key_norm is not None:
            q, k = torch.split(turning, [heads, kv_heads], dim=2)
            turning = torch.cat([layer.query_norm(q), layer.key_norm(k)], dim=2)
        low, high = turning.chunk(2, dim=-1)
        turning = (turning * cos).add_(torch.cat([high, low], dim=-1).mul_(turned_sin))
        q_BHQD, k_BJQD = torch.split(turning.transpose(1, 2), [heads, kv_heads], dim=1)
        keys_BJKD, values_BJKD = cache.update(k_BJQD, v.transpose(1, 2), index)
        if length == 1:  # the query heads of one key/value head stand where positions would
            grouped = q_BHQD.reshape(batch, kv_heads, -1, self._size) * self._size**-0.5
            shares = torch.matmul(grouped, keys_BJKD.transpose(2, 3)).add_(mask_B1QK).softmax(-1)
            return layer.out(torch.matmul(shares, values_BJKD).view(batch, 1, -1))
        mixed = functional.scaled_dot_product_attention(
            q_BHQD, keys_BJKD, values_BJKD, attn_mask=mask_B1QK, enable_gqa=True
        )
        return layer.out(mixed.transpose(1, 2).reshape(batch, length, -1))


def _layer(layer: Any, packed: bool) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        before_attention=_norm(layer.input_layernorm),
        queries_keys_values=_fused(packed, attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        out=_linear(attention.o_proj, packed),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=_fused(packed, mlp.gate_proj, mlp.up_proj),
        down=_linear(mlp.down_proj, packed),
    )


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _linear(module: Any, packed: bool) -> _Linear:
    plain = _Linear(module.weight, module.bias)
    return plain.packed() if packed else plain


def _fused(packed: bool, *modules: Any) -> _Linear:
    """One product for several. The modules' weights become views of its weight: same values, no memory of its own."""
    biases = [module.bias for module in modules if module.bias is not None]
    plain = _Linear(joined([module.weight for module in modules]), torch.cat(biases) if biases else None)
    return plain.packed() if packed else plain

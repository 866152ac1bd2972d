"""One forward of a served policy over caches that the scheduler owns: `FusedStep` where it fits, else `ModuleStep`.

The fused step runs the same arithmetic as the transformers module with fewer, larger operations: one product for
queries, keys and values, one for gate and up, and at one token a sequence no copy of keys and values for the query
heads that share them. It is for decoder layers of Llama's make (Llama, Mistral, Qwen 2, Qwen 3); every other model runs
as the module that it is.

Legend: B sequences, Q new tokens of each, K positions attended to, H query heads, J key/value heads, D head size,
E hidden size, N kept positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from practicum.engines.embedded.fused import joined

LLAMA_LIKE = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})


# (ids [B, Q], positions [B, Q], mask [B, 1, Q, K], cache, kept positions or how many of the last) -> logits [B, N, V];
# keys and values go through `cache.update`.
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any, torch.Tensor | int], torch.Tensor]


def step_of(model: Any) -> Step:
    """The fastest step that is exact for `model`. Parameters replaced later are not seen."""
    if type(model).__name__ in LLAMA_LIKE and model.config.hidden_act == "silu":
        return FusedStep(model)
    return ModuleStep(model)


class ModuleStep:
    """The transformers module as it is."""

    def __init__(self, model: Any) -> None:
        self._model = model

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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)


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

    def __init__(self, model: Any) -> None:
        config = model.config
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._embed = model.model.embed_tokens.weight
        self._head = _linear(model.get_output_embeddings())
        self._rotary = model.model.rotary_emb
        self._layers = [_layer(layer) for layer in model.model.layers]
        self._norm = _norm(model.model.norm)

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
        cos, sin = (table.unsqueeze(1) for table in self._rotary(x_BQE, positions_BQ))
        for index, layer in enumerate(self._layers):
            x_BQE = x_BQE + self._attend(layer, index, layer.before_attention(x_BQE), cos, sin, mask_B1QK, cache)
            gate, up = layer.gate_up(layer.before_mlp(x_BQE)).chunk(2, dim=-1)
            x_BQE = x_BQE + layer.down(functional.silu(gate) * up)
        kept_BNE = x_BQE[:, -keep:] if isinstance(keep, int) else x_BQE[:, keep]
        return self._head(self._norm(kept_BNE))

    def _attend(
        self,
        layer: _Layer,
        index: int,
        x_BQE: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask_B1QK: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        batch, length, _ = x_BQE.shape
        width, kv_width = self._heads * self._size, self._kv_heads * self._size
        q, k, v = (
            part.view(batch, length, -1, self._size).transpose(1, 2)
            for part in torch.split(layer.queries_keys_values(x_BQE), [width, kv_width, kv_width], dim=-1)
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            q, k = layer.query_norm(q), layer.key_norm(k)
        q_BHQD, k_BJQD = _rotate(q, cos, sin), _rotate(k, cos, sin)
        keys_BJKD, values_BJKD = cache.update(k_BJQD, v, index)
        if length == 1:  # the query heads of one key/value head stand where positions would
            grouped = q_BHQD.view(batch, self._kv_heads, -1, self._size)
            mixed = functional.scaled_dot_product_attention(grouped, keys_BJKD, values_BJKD, attn_mask=mask_B1QK)
            return layer.out(mixed.reshape(batch, 1, width))
        mixed = functional.scaled_dot_product_attention(
            q_BHQD, keys_BJKD, values_BJKD, attn_mask=mask_B1QK, enable_gqa=True
        )
        return layer.out(mixed.transpose(1, 2).reshape(batch, length, width))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def _layer(layer: Any) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return _Layer(
        before_attention=_norm(layer.input_layernorm),
        queries_keys_values=_fused(attention.q_proj, attention.k_proj, attention.v_proj),
        query_norm=None if query_norm is None else _norm(query_norm),
        key_norm=None if key_norm is None else _norm(key_norm),
        out=_linear(attention.o_proj),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=_fused(mlp.gate_proj, mlp.up_proj),
        down=_linear(mlp.down_proj),
    )


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _linear(module: Any) -> _Linear:
    return _Linear(module.weight, module.bias)


def _fused(*modules: Any) -> _Linear:
    """One product for several. The modules' weights become views of its weight: same values, no memory of its own."""
    biases = [module.bias for module in modules if module.bias is not None]
    return _Linear(joined([module.weight for module in modules]), torch.cat(biases) if biases else None)

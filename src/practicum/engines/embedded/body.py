"""From a layout to hidden states, and from hidden states to logits: a model without its memory-hungry end.

`FusedBody` runs decoder layers of Llama's make (the ones that `step.py` decodes fused) with few, large products;
`ModuleBody` runs any other transformers module as it is, over prefix trees where its attention allows that (tried out
once, on a small tree), else row by row. Both give the final, normed hidden states at the kept places alone. Logits are
the caller's to ask for, as many at a time as it can hold.

Legend: L tokens of the layout, N kept places, E hidden size, V vocabulary, O outputs of a product.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import BaseModelOutputWithPast

from practicum.engines.embedded.attention import IMPLEMENTATION, TreeAttention
from practicum.engines.embedded.fused import Stack, joined, norm_product, product, rotated, swiglu_product
from practicum.engines.embedded.layout import Layout, Pair, layout_of
from practicum.engines.embedded.step import LLAMA_LIKE
from practicum.engines.embedded.weights import shared_copy
from practicum.errors import Unsupported

# Shared tokens of the fork that a module is tried out on.
_STEM = 16

# Module path -> its A and B.
Factors = Mapping[str, tuple[torch.Tensor, torch.Tensor]]


class Body(Protocol):
    """A policy's layers and head. `trees`: whether it takes layouts that share."""

    trees: bool

    def hidden(self, layout: Layout, *, recompute: bool = False) -> torch.Tensor:
        """Normed hidden states `[N, E]` at the kept places. `recompute` trades time for memory."""

    def head(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """Logits `[N, V]`."""


def body_of(model: Any) -> Body:
    """The fastest body that is exact for `model`, whose tensors it shares."""
    return FusedBody(model) if fits_fused(model) else ModuleBody(shared_copy(model))


def fits_fused(model: Any) -> bool:
    """Whether `FusedBody` computes what the module computes."""
    return type(model).__name__ in LLAMA_LIKE and model.config.hidden_act == "silu"


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Any
    queries_keys_values: Stack
    query_norm: Any
    key_norm: Any
    out: Stack
    before_mlp: Any
    gate_up: Stack
    down: Stack


class FusedBody:
    """Layers of Llama's make over a model's own tensors, or merged ones.

    With `factors` and `merge`, every adapted weight is a tensor of its own that `refresh` sets to W + s B A, and the
    factors train. With factors alone they are added as products, and nothing trains. Without, the weights that ask for
    gradients train.
    """

    trees = True

    def __init__(
        self, model: Any, *, factors: Factors | None = None, scaling: float = 1.0, merge: bool = False
    ) -> None:
        config = model.config
        self._factors, self._scaling, self._merge = factors, scaling, merge
        self._size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._widths = (config.num_attention_heads * self._size, config.num_key_value_heads * self._size)
        self._embed = model.model.embed_tokens.weight
        self._head = model.get_output_embeddings()
        self._rotary = model.model.rotary_emb
        self._merged: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        names = {id(module): name for name, module in model.named_modules()}
        self._layers = [self._layer(layer, names) for layer in model.model.layers]
        self._norm = model.model.norm
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the merged weights to the factors' values."""
        for merged, weight, first, second in self._merged:
            # The sum that a sampler makes of the same adapter, to the bit.
            merged.copy_((weight.float() + (second.float() @ first.float()) * self._scaling).to(weight.dtype))

    def hidden(self, layout: Layout, *, recompute: bool = False) -> torch.Tensor:
        """See `Body`."""
        x_LE = functional.embedding(layout.ids_L, self._embed)
        cos, sin = (table[0] for table in self._rotary(x_LE, layout.positions_L[None]))
        attention = TreeAttention(layout, dtype=x_LE.dtype, device=x_LE.device)
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            arguments = (layer, x_LE, cos, sin, attention, layout.keep_N if index == last else None)
            if recompute and torch.is_grad_enabled():
                x_LE = checkpoint(self._forward, *arguments, use_reentrant=False, preserve_rng_state=False)
            else:
                x_LE = self._forward(*arguments)
        norm = self._norm
        return functional.rms_norm(x_LE, norm.weight.shape, norm.weight, norm.variance_epsilon)

    def head(self, hidden_NE: torch.Tensor) -> torch.Tensor:
        """See `Body`."""
        return functional.linear(hidden_NE, self._head.weight, self._head.bias)

    def _forward(
        self,
        layer: _Layer,
        x_LE: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        attention: TreeAttention,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        width, kv_width = self._widths
        joined_TO = norm_product(
            x_LE, layer.before_attention.weight, layer.before_attention.variance_epsilon, layer.queries_keys_values
        )
        if layer.query_norm is not None:
            q, k, v = torch.split(joined_TO, [width, kv_width, kv_width], dim=-1)
            q, k = (self._head_norm(part, norm) for part, norm in ((q, layer.query_norm), (k, layer.key_norm)))
            joined_TO = torch.cat([q, k, v], dim=-1)
        joined_TO = rotated(joined_TO, cos, sin, width + kv_width)
        q, k, v = (
            part.view(len(x_LE), -1, self._size) for part in torch.split(joined_TO, [width, kv_width, kv_width], dim=-1)
        )
        mixed = attention(q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None])
        mixed = mixed[0].transpose(0, 1).reshape(len(x_LE), width)
        if keep is not None:  # nothing after the last layer's attention looks at another place
            mixed, x_LE = mixed.index_select(0, keep), x_LE.index_select(0, keep)
        x_LE = x_LE + product(mixed, layer.out)
        gate_up = norm_product(x_LE, layer.before_mlp.weight, layer.before_mlp.variance_epsilon, layer.gate_up)
        return x_LE + swiglu_product(gate_up, layer.down)

    def _head_norm(self, x_LO: torch.Tensor, norm: Any) -> torch.Tensor:
        heads = x_LO.view(len(x_LO), -1, self._size)
        return functional.rms_norm(heads, (self._size,), norm.weight, norm.variance_epsilon).flatten(1)

    def _layer(self, layer: Any, names: Mapping[int, str]) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp

        def stack(*modules: Any) -> Stack:
            return self._stack(modules, [names[id(module)] for module in modules])

        return _Layer(
            before_attention=layer.input_layernorm,
            queries_keys_values=stack(attention.q_proj, attention.k_proj, attention.v_proj),
            query_norm=getattr(attention, "q_norm", None),
            key_norm=getattr(attention, "k_norm", None),
            out=stack(attention.o_proj),
            before_mlp=layer.post_attention_layernorm,
            gate_up=stack(mlp.gate_proj, mlp.up_proj),
            down=stack(mlp.down_proj),
        )

    def _stack(self, modules: tuple[Any, ...], names: list[str]) -> Stack:
        sizes = [int(module.weight.shape[0]) for module in modules]
        biases = [module.bias for module in modules if module.bias is not None]
        weight, bias = joined([module.weight for module in modules]), joined(biases) if biases else None
        if self._factors is None:
            own = tuple(each for each in (*(module.weight for module in modules), *biases) if each.requires_grad)
            return Stack(weight, bias, sizes, own=own)
        pairs = [self._factors[name] for name in names]
        if self._merge:
            merged = torch.empty_like(weight)
            parts = (torch.split(merged, sizes), torch.split(weight, sizes), pairs)
            self._merged += [(part, base, *pair) for part, base, pair in zip(*parts, strict=True)]
            weight = merged
        factors = tuple(each for pair in pairs for each in pair)
        return Stack(weight, bias, sizes, factors, self._scaling, self._merge)


class ModuleBody:
    """A transformers causal model as it is. It owns the module tree it is given, though not the tensors in it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._inner = model.base_model
        self._device = model.get_input_embeddings().weight.device
        for module in model.modules():  # checkpointing runs in training mode, which must change nothing else
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if hasattr(model.config, "attention_dropout"):
            model.config.attention_dropout = 0.0
        self.head = self._head()
        self.trees = self._attends_over_trees()

    def hidden(self, layout: Layout, *, recompute: bool = False) -> torch.Tensor:
        """See `Body`."""
        with self._recomputing(recompute and torch.is_grad_enabled()):
            return self._over_tree(layout) if self.trees else self._apart(layout)

    def _over_tree(self, layout: Layout) -> torch.Tensor:
        tree = TreeAttention(layout, dtype=self._model.dtype, device=layout.ids_L.device)
        output = self._inner(
            input_ids=layout.ids_L[None], position_ids=layout.positions_L[None], use_cache=False, tree=tree
        )
        states: torch.Tensor = output.last_hidden_state[0]
        return states.index_select(0, layout.keep_N)

    def _apart(self, layout: Layout) -> torch.Tensor:
        rows = [layout.ids_L[None, segment.start : segment.end] for segment in layout.segments]
        states = [self._inner(input_ids=row, use_cache=False).last_hidden_state[0] for row in rows]
        return torch.cat(states).index_select(0, layout.keep_N)

    @torch.no_grad()
    def _head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes logits of hidden states: the module's own forward behind a body that hands them over, so that caps
        and scales are in it, or else the output layer alone. Raises Unsupported where neither gives its logits.
        """
        end = copy.copy(self._model)
        end._modules = {**self._model._modules, self._model.base_model_prefix: _Given()}
        layout = layout_of(self._fork(), shared=False).to(self._device)
        rows = [torch.tensor([[*prompt, *completion]], device=self._device) for prompt, completion in self._fork()]
        expected = torch.cat([self._model(input_ids=row, use_cache=False).logits[0, _STEM - 1 : -1] for row in rows])
        states = self._apart(layout)
        for head in (lambda hidden: end(inputs_embeds=hidden[None]).logits[0], self._model.get_output_embeddings()):
            try:
                if _alike(head(states), expected):
                    return head
            except (TypeError, AttributeError, ValueError):
                continue  # its forward asks more of its body than hidden states
        raise Unsupported(
            f"{type(self._model).__name__} makes its logits of more than its last hidden states.",
            hint="Train this model with an external trainer.",
        )

    @torch.no_grad()
    def _attends_over_trees(self) -> bool:
        """Try a fork out."""
        config = self._model.config
        apart, tree = (layout_of(self._fork(), shared=shared).to(self._device) for shared in (False, True))
        expected = self._apart(apart)
        native, config._attn_implementation = config._attn_implementation, IMPLEMENTATION
        try:
            if _alike(self._over_tree(tree), expected):
                return True
        except (Unsupported, TypeError, KeyError, ValueError):
            pass  # its attention does not take what it is handed
        config._attn_implementation = native
        return False

    def _fork(self) -> list[Pair]:
        vocabulary = self._model.get_input_embeddings().weight.shape[0]
        ids = torch.arange(1, _STEM + 8).mul(7919).remainder(vocabulary).tolist()
        stem = tuple(ids[:_STEM])
        return [(stem, tuple(ids[_STEM : _STEM + 4])), (stem, tuple(ids[_STEM + 3 :]))]

    @contextmanager
    def _recomputing(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        self._model.activation_checkpointing_enable({"use_reentrant": False})
        self._model.train()
        try:
            yield
        finally:
            self._model.eval()
            self._model.activation_checkpointing_disable()


class _Given(torch.nn.Module):
    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutputWithPast:
        return _GivenOutput(last_hidden_state=inputs_embeds)


class _GivenOutput(BaseModelOutputWithPast):  # type: ignore[misc]
    """Hidden states and nothing else, whatever else is asked for."""

    def __getattr__(self, name: str) -> None:
        return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    most = 1e-4 if one.dtype == torch.float32 else 5e-2
    return bool((one.float() - other.float()).abs().max() <= most * other.float().abs().max())

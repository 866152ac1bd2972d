"""Policies that train a LoRA adapter: `LoraPolicy` over merged weights, `PeftPolicy` for models of any other make.

Both hold the same tensors under the same names and compute W + scaling * B A. `LoraPolicy` multiplies with that sum,
made once a step, so that nothing of the adapter is left in the forward pass; it is the sum that the sampler makes of
the same adapter. Its frozen siblings add their factors' products instead and cost no weights of their own. `PeftPolicy`
runs the transformers module with peft's layers in it, on a module tree of its own. Nothing is ever merged in place,
which is how an adapter comes to be applied twice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from practicum.engines.embedded.adapter import check_state, linear_modules, read_adapter, tensor_name, write_adapter
from practicum.engines.embedded.body import Factors, FusedBody, ModuleBody
from practicum.engines.embedded.layout import Layout
from practicum.engines.embedded.policy import Sibling, copied, same_tensors
from practicum.engines.embedded.settings import LoraSettings
from practicum.engines.embedded.weights import shared_copy
from practicum.engines.embedded.whole import is_whole
from practicum.errors import Unsupported

_TRAIN_FULL = "Train all weights, or start from an adapter."


class _Adapters:
    """Adapters by sibling: what both kinds do alike."""

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        self.settings = settings
        self._source = model
        self._modules = linear_modules(model)
        self._tensors: dict[Sibling, dict[str, torch.nn.Parameter]] = {}

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """See `Policy`."""
        return self._tensors["policy"]

    def changed(self) -> None:
        """See `Policy`."""

    def state(self, sibling: Sibling = "policy") -> dict[str, torch.Tensor] | None:
        """See `Policy`."""
        return copied(self._tensors.get(sibling))

    def same(self, one: Sibling, other: Sibling) -> bool:
        """See `Policy`."""
        return same_tensors(self._tensors.get(one), self._tensors.get(other))

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Policy`."""
        check_state(state, self._modules, self.settings.rank)

    def read(self, folder: Path, *, digest: str | None = None) -> dict[str, torch.Tensor]:
        """See `Policy`."""
        if is_whole(folder):
            raise Unsupported(
                f"{folder} holds a whole model; this trainer trains an adapter.", hint="Train full weights."
            )
        adapter = read_adapter(folder, self._source, digest=digest)
        mine = self.settings
        if adapter.rank != mine.rank or adapter.scaling != mine.scaling:
            raise Unsupported(
                f"the adapter in {folder} has rank {adapter.rank} and scaling {adapter.scaling:g}; this trainer has "
                f"rank {mine.rank} and scaling {mine.scaling:g}.",
                hint="Set the LoRA rank and alpha to the adapter's.",
            )
        return dict(adapter.state)

    def publish(self, folder: Path, *, base_model: str) -> str:
        """See `Policy`; a peft adapter."""
        return write_adapter(folder, copied(self._tensors["policy"]) or {}, self.settings, base_model=base_model)

    def put(self, sibling: Sibling, state: Mapping[str, torch.Tensor] | None) -> None:
        """See `Policy`."""
        if state is not None:
            self.check(state)
            if sibling not in self._tensors:
                self._add(sibling)
            self._fill(sibling, state)
        elif sibling == "policy":
            self._fill("policy", self._fresh())
        elif sibling in self._tensors:
            del self._tensors[sibling]
            self._remove(sibling)

    def _fresh(self) -> dict[str, torch.Tensor]:
        """A uniform in +-1/sqrt(in) from the seed, B zero, so that the policy is the base."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        state = {}
        for name, module in self._modules.items():
            bound = 1 / math.sqrt(module.in_features)
            first = torch.empty(self.settings.rank, module.in_features).uniform_(-bound, bound, generator=generator)
            state[tensor_name(name, "A")] = first
            state[tensor_name(name, "B")] = torch.zeros(module.out_features, self.settings.rank)
        return state

    @torch.no_grad()
    def _fill(self, sibling: Sibling, state: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self._tensors[sibling].items():
            tensor.copy_(state[name])
        if sibling == "policy":
            self.changed()

    def _add(self, sibling: Sibling) -> None:
        raise NotImplementedError

    def _remove(self, sibling: Sibling) -> None:
        raise NotImplementedError


class LoraPolicy(_Adapters):
    """LoRA on a model that `FusedBody` runs."""

    trees = True

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        super().__init__(model, settings)
        self._base = FusedBody(model)
        self._bodies: dict[Sibling, FusedBody] = {}
        self._add("policy")
        self._fill("policy", self._fresh())

    def changed(self) -> None:
        """See `Policy`."""
        self._bodies["policy"].refresh()

    def hidden(self, layout: Layout, sibling: Sibling = "policy", *, recompute: bool = False) -> torch.Tensor:
        """See `Policy`."""
        body = self._bodies.get(sibling, self._base)
        with torch.set_grad_enabled(sibling == "policy" and torch.is_grad_enabled()):
            return body.hidden(layout, recompute=recompute)

    def head(self, hidden_NE: torch.Tensor, sibling: Sibling = "policy") -> torch.Tensor:
        """See `Policy`; an adapter leaves the head alone."""
        return self._base.head(hidden_NE)

    def _add(self, sibling: Sibling) -> None:
        trains = sibling == "policy"
        tensors = {
            name: torch.nn.Parameter(tensor.to(self._source.device), requires_grad=trains)
            for name, tensor in sorted(self._fresh().items())
        }
        self._tensors[sibling] = tensors
        factors: Factors = {
            name: (tensors[tensor_name(name, "A")], tensors[tensor_name(name, "B")]) for name in self._modules
        }
        self._bodies[sibling] = FusedBody(self._source, factors=factors, scaling=self.settings.scaling, merge=trains)

    def _remove(self, sibling: Sibling) -> None:
        del self._bodies[sibling]


class PeftPolicy(_Adapters):
    """LoRA on any causal model, by peft's own layers."""

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        super().__init__(model, settings)
        self._config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            lora_dropout=0.0,
            bias="none",
            target_modules=sorted(self._modules),
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers a question by its old name
            self._model = get_peft_model(shared_copy(model), self._config, adapter_name="policy")
        self._model.eval()
        self._body = ModuleBody(self._model.get_base_model())
        self.trees = self._body.trees
        self._tensors["policy"] = self._find("policy")
        self._fill("policy", self._fresh())

    def hidden(self, layout: Layout, sibling: Sibling = "policy", *, recompute: bool = False) -> torch.Tensor:
        """See `Policy`."""
        if sibling == "policy":
            return self._body.hidden(layout, recompute=recompute)
        with torch.no_grad(), self._as(sibling):
            return self._body.hidden(layout)

    def head(self, hidden_NE: torch.Tensor, sibling: Sibling = "policy") -> torch.Tensor:
        """See `Policy`; an adapter leaves the head alone."""
        return self._body.head(hidden_NE)

    @contextmanager
    def _as(self, sibling: Sibling) -> Iterator[None]:
        if sibling not in self._tensors:
            with self._model.disable_adapter():
                yield
            return
        self._model.set_adapter(sibling)
        try:
            yield
        finally:
            self._model.set_adapter("policy")

    def _add(self, sibling: Sibling) -> None:
        self._model.add_adapter(sibling, self._config)
        self._model.set_adapter("policy")
        self._tensors[sibling] = self._find(sibling)

    def _remove(self, sibling: Sibling) -> None:
        self._model.delete_adapter(sibling)
        self._model.set_adapter("policy")

    def _find(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        suffix = f".{adapter}.weight"
        found = {
            f"{name.removesuffix(suffix)}.weight": parameter
            for name, parameter in self._model.named_parameters()
            if name.endswith(suffix) and ".lora_" in name
        }
        return {name: found[name] for name in sorted(found)}

"""The trained policy: peft LoRA on a module tree of its own over the base's tensors, with frozen siblings.

Adapters by name: `policy` (the only one that trains), `teacher` and `reference` (frozen; absent means the base).
The base's tensors are shared with the sampler and never written to; nothing is ever merged in place, which is how an
adapter comes to be applied twice.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model

from practicum.engines.embedded.adapter import check_state, linear_modules, tensor_name
from practicum.engines.embedded.batches import Tokens
from practicum.engines.embedded.settings import LoraSettings
from practicum.engines.embedded.weights import shared_copy

AdapterName = Literal["policy", "teacher", "reference"]


class LoraPolicy:
    """A causal model with one trainable adapter and up to two frozen ones."""

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        self.settings = settings
        self._modules = linear_modules(model)
        tree = shared_copy(model)
        if hasattr(tree.config, "attention_dropout"):
            tree.config.attention_dropout = 0.0
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
            self._model = get_peft_model(tree, self._config, adapter_name="policy")
        self._model.eval()
        self._parameters: dict[str, dict[str, torch.nn.Parameter]] = {"policy": self._find("policy")}
        self.reset()

    @property
    def scaling(self) -> float:
        """Factor on B A."""
        return self.settings.scaling

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The trainable tensors by name, in a fixed order."""
        return self._parameters["policy"]

    def reset(self) -> None:
        """A fresh policy adapter: A uniform in +-1/sqrt(in) from the seed, B zero, so the policy is the base."""
        generator = torch.Generator().manual_seed(self.settings.seed)
        with torch.no_grad():
            for name, module in self._modules.items():
                bound = 1 / math.sqrt(module.in_features)
                first = self.parameters()[tensor_name(name, "A")]
                first.copy_(torch.empty(first.shape).uniform_(-bound, bound, generator=generator))
                self.parameters()[tensor_name(name, "B")].zero_()

    def state(self, adapter: AdapterName = "policy") -> dict[str, torch.Tensor] | None:
        """Copies of an adapter's tensors, or None if it is absent."""
        if adapter not in self._parameters:
            return None
        return {name: tensor.detach().clone() for name, tensor in self._parameters[adapter].items()}

    def same(self, one: AdapterName, other: AdapterName) -> bool:
        """Whether two adapters are the same policy: both absent, or equal tensor by tensor."""
        first, second = self._parameters.get(one), self._parameters.get(other)
        if first is None or second is None:
            return first is second
        return all(torch.equal(first[name], second[name]) for name in first)

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Raise CorruptArtifact unless `state` fits this policy's adapter."""
        check_state(state, self._modules, self.settings.rank)

    def put(self, adapter: AdapterName, state: Mapping[str, torch.Tensor] | None) -> None:
        """Set an adapter's tensors; None removes a frozen one, and starts the policy afresh."""
        if state is None:
            if adapter == "policy":
                self.reset()
            elif adapter in self._parameters:
                del self._parameters[adapter]
                self._model.delete_adapter(adapter)
                self._model.set_adapter("policy")
            return
        self.check(state)
        if adapter not in self._parameters:
            self._model.add_adapter(adapter, self._config)
            self._model.set_adapter("policy")
            self._parameters[adapter] = self._find(adapter)
        with torch.no_grad():
            for name, tensor in self._parameters[adapter].items():
                tensor.copy_(state[name])

    def logits(self, tokens: Tokens, *, recompute: bool = False) -> torch.Tensor:
        """Logits `[N, V]` of the policy at the kept places, with gradient. `recompute` trades time for memory."""
        with self._recomputing(recompute):
            return self._forward(tokens)

    @torch.no_grad()
    def frozen_logits(self, adapter: AdapterName, tokens: Tokens) -> torch.Tensor:
        """Logits `[N, V]` of a frozen adapter, or of the base if it is absent; no gradient."""
        if adapter not in self._parameters:
            with self._model.disable_adapter():
                return self._forward(tokens)
        self._model.set_adapter(adapter)
        try:
            return self._forward(tokens)
        finally:
            self._model.set_adapter("policy")

    def _forward(self, tokens: Tokens) -> torch.Tensor:
        return tokens.forward(self._model)

    @contextmanager
    def _recomputing(self, wanted: bool) -> Iterator[None]:
        if not wanted:
            yield
            return
        inner = self._model.get_base_model()
        # Checkpointing acts in training mode only; with every dropout at 0 the mode changes nothing else.
        inner.activation_checkpointing_enable({"use_reentrant": False})
        self._model.train()
        try:
            yield
        finally:
            self._model.eval()
            inner.activation_checkpointing_disable()

    def _find(self, adapter: str) -> dict[str, torch.nn.Parameter]:
        suffix = f".{adapter}.weight"
        found = {
            f"{name.removesuffix(suffix)}.weight": parameter
            for name, parameter in self._model.named_parameters()
            if name.endswith(suffix) and ".lora_" in name
        }
        return {name: found[name] for name in sorted(found)}

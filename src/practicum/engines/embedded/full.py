"""A policy whose every weight trains, on a copy of the base's; frozen siblings are whole models of their own.

Tensors have the names of the transformers module, tied ones once.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from practicum.engines.embedded.body import Body, body_of
from practicum.engines.embedded.layout import Layout
from practicum.engines.embedded.policy import Sibling, copied, same_tensors
from practicum.engines.embedded.whole import check_whole, is_whole, read_whole, write_whole
from practicum.errors import Unsupported


class FullPolicy:
    """All weights of one model."""

    def __init__(self, model: Any) -> None:
        self._base = model
        self._models: dict[Sibling, Any] = {"policy": copy.deepcopy(model).requires_grad_(True)}
        self._bodies: dict[Sibling, Body] = {"policy": body_of(self._models["policy"])}
        self._base_body: Body | None = None
        self.trees = self._bodies["policy"].trees

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """See `Policy`."""
        return dict(self._models["policy"].named_parameters())

    def changed(self) -> None:
        """See `Policy`."""

    def state(self, sibling: Sibling = "policy") -> dict[str, torch.Tensor] | None:
        """See `Policy`."""
        return copied(self._named(sibling))

    def same(self, one: Sibling, other: Sibling) -> bool:
        """See `Policy`."""
        return same_tensors(self._named(one), self._named(other))

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `Policy`."""
        check_whole(state, self._base)

    def read(self, folder: Path, *, digest: str | None = None) -> dict[str, torch.Tensor]:
        """See `Policy`."""
        if not is_whole(folder):
            raise Unsupported(f"{folder} holds an adapter; this trainer trains all weights.", hint="Train an adapter.")
        return read_whole(folder, self._base, digest=digest)

    def publish(self, folder: Path, *, base_model: str) -> str:
        """See `Policy`; a model that transformers loads."""
        return write_whole(folder, self.parameters(), self._base, base_model=base_model)

    def put(self, sibling: Sibling, state: Mapping[str, torch.Tensor] | None) -> None:
        """See `Policy`."""
        if state is None and sibling != "policy":
            self._models.pop(sibling, None)
            self._bodies.pop(sibling, None)
            return
        values = dict(self._base.named_parameters()) if state is None else state
        self.check(values)
        if sibling not in self._models:
            self._models[sibling] = copy.deepcopy(self._base).requires_grad_(False)
            self._bodies[sibling] = body_of(self._models[sibling])
        with torch.no_grad():
            for name, parameter in self._models[sibling].named_parameters():
                parameter.copy_(values[name])

    def hidden(self, layout: Layout, sibling: Sibling = "policy", *, recompute: bool = False) -> torch.Tensor:
        """See `Policy`."""
        with torch.set_grad_enabled(sibling == "policy" and torch.is_grad_enabled()):
            return self._body(sibling).hidden(layout, recompute=recompute)

    def head(self, hidden_NE: torch.Tensor, sibling: Sibling = "policy") -> torch.Tensor:
        """See `Policy`."""
        return self._body(sibling).head(hidden_NE)

    def _named(self, sibling: Sibling) -> dict[str, torch.nn.Parameter] | None:
        model = self._models.get(sibling)
        return None if model is None else dict(model.named_parameters())

    def _body(self, sibling: Sibling) -> Body:
        if sibling in self._bodies:
            return self._bodies[sibling]
        if self._base_body is None:
            self._base_body = body_of(self._base)
        return self._base_body

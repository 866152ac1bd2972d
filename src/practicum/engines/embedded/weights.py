"""Policy versions in memory: the base model once, and per version a merged copy of the adapted linear weights only.

A version is a module tree of its own whose other tensors (embeddings, norms, head) are the base's, so decoding pays
nothing for LoRA and a version costs the size of its linear layers; one whose every weight was trained shares nothing,
and where weights are packed it is held twice.
Nothing here writes into a base tensor.
Versions are handed out by `acquire` and given back by `release`; one that is in use, or live, is never evicted.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from practicum.engines.embedded.adapter import Adapter, check_state, linear_modules, read_adapter, tensor_name
from practicum.engines.embedded.step import FusedStep, Step, step_of
from practicum.engines.embedded.whole import check_whole, is_whole, read_whole
from practicum.errors import Conflict, CorruptArtifact, NotFound

_PROBE_IDS = 8


@dataclass(slots=True, eq=False)
class ServedVersion:
    """One version ready to decode. `users` counts the requests that hold it; `order` grows with each use."""

    version: int
    step: Step
    digest: str
    make_model: Callable[[], Any]
    users: int = 0
    order: int = 0
    retired: bool = field(default=False)

    @property
    def model(self) -> Any:
        """The version as a module. Where the step holds the weights in a layout of its own it is made anew: hold it."""
        return self.make_model()


def shared_copy(model: Any) -> Any:
    """A module tree of its own over the same tensors: replacing a parameter in it leaves `model` alone."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


class PolicyWeights:
    """Versions by number. Version 0 is the base and stays. Thread-safe; merging happens outside the lock."""

    def __init__(self, model: Any, *, max_resident: int = 4, packed: bool = True) -> None:
        self._base = model
        self._packed = packed
        self._max_resident = max_resident
        self._lock = threading.Lock()
        self._base_step = step_of(model, packed=packed)
        self._versions: dict[int, ServedVersion] = {
            0: ServedVersion(version=0, step=self._base_step, digest="", make_model=lambda: model)
        }
        self._live = 0
        self._clock = 0

    @property
    def versions(self) -> tuple[int, ...]:
        """The resident versions, ascending."""
        with self._lock:
            return tuple(sorted(self._versions))

    def set_live(self, version: int) -> None:
        """Protect a version from eviction, instead of the one before. Raises NotFound if it is not resident."""
        with self._lock:
            self._get(version)
            self._live = version

    def acquire(self, version: int) -> ServedVersion:
        """Hold a version until `release`. Raises NotFound if it is not resident."""
        with self._lock:
            served = self._get(version)
            served.users += 1
            self._clock += 1
            served.order = self._clock
            return served

    def release(self, served: ServedVersion) -> None:
        """Give a held version back."""
        with self._lock:
            served.users -= 1
            self._evict()

    def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        """Make the adapter in a folder servable as `version` (None: the base itself). Repeating it changes nothing.

        Raises: CorruptArtifact, with every other version as it was; Conflict if the version has other weights.
        """
        with self._lock:
            present = self._versions.get(version)
            if present is not None:  # whoever asks is about to use it
                self._clock += 1
                present.order = self._clock
        if present is not None:
            if adapter_path is None or present.digest == digest:
                return
            raise Conflict(f"version {version} is loaded with other weights.", hint="Version numbers are never reused.")
        if adapter_path is None:
            base = self._base
            self._install(ServedVersion(version=version, step=self._base_step, digest=digest, make_model=lambda: base))
            return
        if is_whole(adapter_path):
            served = self._whole(version, read_whole(adapter_path, self._base, digest=digest), digest)
        else:
            served = self._adapted(version, read_adapter(adapter_path, self._base, digest=digest), digest)
        self._install(served)

    def put(self, version: int, adapter_state: Mapping[str, torch.Tensor], scaling: float) -> None:
        """Make (or refresh) a version from a trainer's tensors, without disk. Raises Conflict while it is in use."""
        if version == 0:
            raise Conflict("version 0 is the base model; its weights never change.")
        rank = next((int(tensor.shape[0]) for name, tensor in adapter_state.items() if ".lora_A." in name), 0)
        if rank:
            check_state(adapter_state, _modules_of(adapter_state, self._base), rank)
            own = {name: tensor.detach().clone() for name, tensor in adapter_state.items()}  # the trainer goes on
            served = self._adapted(version, Adapter(state=own, scaling=scaling, rank=rank), "")
        else:
            check_whole(adapter_state, self._base)
            served = self._whole(version, adapter_state, "")
        self._install(served, replace=True)

    def drop(self, version: int) -> None:
        """Forget a version. Requests that hold it finish on it. Version 0 and the live one stay (Conflict)."""
        with self._lock:
            if version in (0, self._live):
                raise Conflict(f"version {version} is {'live' if version else 'the base'} and stays resident.")
            self._get(version).retired = True
            del self._versions[version]

    def _adapted(self, version: int, adapter: Adapter, digest: str) -> ServedVersion:
        merged, effective = self._merge(adapter)
        if effective:
            self._check_effect(merged)
        step = step_of(merged, packed=self._packed, base=self._base_step)
        apart = isinstance(step, FusedStep) and step.packed  # the merged tensors would be a second copy
        make = (lambda: self._merge(adapter)[0]) if apart else (lambda: merged)
        return ServedVersion(version=version, step=step, digest=digest, make_model=make)

    def _whole(self, version: int, state: Mapping[str, torch.Tensor], digest: str) -> ServedVersion:
        model = self._replace(state)
        # Laid out as the base is: which shapes are safe was found out with that.
        step = step_of(model, packed=self._packed, base=self._base_step)
        return ServedVersion(version=version, step=step, digest=digest, make_model=lambda: model)

    def _get(self, version: int) -> ServedVersion:
        served = self._versions.get(version)
        if served is None:
            raise NotFound(
                f"policy version {version} is not loaded; resident are {sorted(self._versions)}.",
                hint="Load it first.",
            )
        return served

    def _install(self, served: ServedVersion, *, replace: bool = False) -> None:
        with self._lock:
            present = self._versions.get(served.version)
            if present is not None and not replace:
                return
            if present is not None:
                if present.users:
                    raise Conflict(f"version {served.version} has {present.users} requests running on it.")
                present.retired = True
            self._clock += 1
            served.order = self._clock
            self._versions[served.version] = served
            self._evict(keep=served.version)

    def _evict(self, keep: int | None = None) -> None:
        extra = sorted((v for v in self._versions.values() if v.version != 0), key=lambda v: v.order)
        excess = len(extra) - self._max_resident
        for served in extra:
            if excess <= 0:
                return
            if served.users == 0 and served.version not in (self._live, keep):
                served.retired = True
                del self._versions[served.version]
                excess -= 1

    @torch.no_grad()
    def _merge(self, adapter: Adapter) -> tuple[Any, bool]:
        """A shared copy of the base with W + scaling * B A in place of each adapted W; whether that has an effect."""
        model = shared_copy(self._base)
        effective = False
        for name, module in linear_modules(model).items():
            first, second = adapter.state.get(tensor_name(name, "A")), adapter.state.get(tensor_name(name, "B"))
            if first is None or second is None:
                continue
            effective = effective or (bool(second.any()) and bool(first.any()))
            delta = (second.float() @ first.float()) * adapter.scaling
            merged = (module.weight.float() + delta.to(module.weight.device)).to(module.weight.dtype)
            module.weight = torch.nn.Parameter(merged, requires_grad=False)
        return model, effective

    @torch.no_grad()
    def _replace(self, state: Mapping[str, torch.Tensor]) -> Any:
        """A shared copy of the base with a whole model's weights in place of its own."""
        model = shared_copy(self._base)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        fresh = {
            name: torch.nn.Parameter(state[name].detach().to(parameter, copy=True), requires_grad=False)
            for name, parameter in model.named_parameters()
        }
        for module in model.modules():
            for own, parameter in module.named_parameters(recurse=False):
                setattr(module, own, fresh[names[id(parameter)]])
        if any(not torch.equal(fresh[name], parameter) for name, parameter in self._base.named_parameters()):
            self._check_effect(model)
        return model

    def _check_effect(self, model: Any) -> None:
        """An adapter that changes nothing looks like one that was never delivered; refuse it."""
        vocabulary = self._base.get_output_embeddings().weight.shape[0]
        ids = torch.arange(_PROBE_IDS).mul(7919).remainder(vocabulary)[None]
        before, after = (each(input_ids=ids, use_cache=False).logits for each in (self._base, model))
        if not torch.isfinite(after).all():
            raise CorruptArtifact("the merged policy gives values that are not finite.")
        if torch.equal(before, after):
            raise CorruptArtifact("the adapter has weights but changes no output of the base model.")


def _modules_of(state: Mapping[str, torch.Tensor], model: Any) -> dict[str, torch.nn.Linear]:
    return {
        name: module
        for name, module in linear_modules(model).items()
        if tensor_name(name, "A") in state or tensor_name(name, "B") in state
    }

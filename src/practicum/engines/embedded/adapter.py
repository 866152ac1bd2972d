"""LoRA adapters as tensors and as folders, in the format that peft reads.

One name for a tensor everywhere: `base_model.model.<module>.lora_A.weight` [rank, in] and `.lora_B.weight` [out, rank].
An adapter stands for W + scaling * B A on the linear layers it names; biases, embeddings and the head stay the base's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from practicum.engines.embedded.files import atomic_folder
from practicum.engines.embedded.settings import LoraSettings
from practicum.errors import Conflict, CorruptArtifact
from practicum.types.digests import folder_digest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Settings of peft that change what the tensors mean; an adapter that uses one is refused, never misread.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "modules_to_save": (None, []),
    "layers_to_transform": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Tensors by name, the factor on B A, and the rank."""

    state: Mapping[str, torch.Tensor]
    scaling: float
    rank: int


def linear_modules(model: Any) -> dict[str, torch.nn.Linear]:
    """Every linear layer by its path, without the head: what an adapter may change."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def tensor_name(module: str, matrix: str) -> str:
    """Name of matrix `A` or `B` of a module."""
    return f"{_PREFIX}{module}.lora_{matrix}.weight"


def check_state(state: Mapping[str, torch.Tensor], modules: Mapping[str, torch.nn.Linear], rank: int) -> None:
    """Raise CorruptArtifact unless `state` holds exactly A and B of every module, in shape and finite."""
    shapes: dict[str, tuple[int, int]] = {}
    for name, module in modules.items():
        shapes[tensor_name(name, "A")] = (rank, module.in_features)
        shapes[tensor_name(name, "B")] = (module.out_features, rank)
    missing, unknown = sorted(shapes.keys() - state.keys()), sorted(state.keys() - shapes.keys())
    if missing or unknown:
        raise CorruptArtifact(
            f"the adapter lacks {len(missing)} tensors and has {len(unknown)} that the base model has no place for "
            f"(first: {(missing + unknown)[0]}).",
            hint="Is it an adapter of another base model?",
        )
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise CorruptArtifact(f"the adapter's {name} has shape {tuple(state[name].shape)}, expected {shape}.")
        if not torch.isfinite(state[name]).all():
            raise CorruptArtifact(f"the adapter's {name} holds a value that is not finite.")


def read_adapter(folder: Path, model: Any, *, digest: str | None = None) -> Adapter:
    """Read an adapter folder, checked: its digest (where given), its settings, every tensor against `model`.

    Raises: CorruptArtifact for anything that does not match.
    """
    if not folder.is_dir():
        raise CorruptArtifact(f"the adapter folder {folder} does not exist.")
    try:
        if digest is not None and (found := folder_digest(folder)) != digest:
            raise CorruptArtifact(f"the adapter in {folder} has digest {found[:16]}…, recorded was {digest[:16]}….")
        config = json.loads((folder / CONFIG_FILE).read_bytes())
        state = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS_FILE).items()}
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        targets = config["target_modules"]
    except CorruptArtifact:
        raise
    except Exception as error:  # whatever a damaged file makes json and safetensors raise
        raise CorruptArtifact(f"the adapter in {folder} cannot be read: {error}") from error
    for key, allowed in _PLAIN.items():
        if config.get(key, allowed[0]) not in allowed:
            raise CorruptArtifact(f"the adapter in {folder} uses {key} = {config[key]!r}, which is not supported.")
    check_state(state, _targeted(model, targets), rank)
    return Adapter(state=state, scaling=alpha / rank, rank=rank)


def write_adapter(
    folder: Path, state: Mapping[str, torch.Tensor], settings: LoraSettings, *, base_model: str, note: str = ""
) -> str:
    """Write a peft adapter folder with a model card, atomically, and return its digest.

    Writing the same adapter to the same place again is allowed. Raises: Conflict if another one stands there.
    """
    suffixes = sorted({name.removeprefix(_PREFIX).split(".lora_")[0].rsplit(".", 1)[-1] for name in state})
    config = {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": settings.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": settings.rank,
        "target_modules": suffixes,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    digest = ""
    try:
        with atomic_folder(folder) as draft:
            (draft / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            tensors = {name: state[name].detach().contiguous().clone() for name in sorted(state)}
            save_file(tensors, draft / WEIGHTS_FILE, metadata={"format": "pt"})
            (draft / "README.md").write_text(_card(settings, base_model, note))
            digest = folder_digest(draft)
    except FileExistsError as error:
        if folder.is_dir() and folder_digest(folder) == digest:
            return digest
        raise Conflict(f"{error}; an adapter is never overwritten.", hint="Publish to a new folder.") from error
    return digest


def _targeted(model: Any, targets: Any) -> dict[str, torch.nn.Linear]:
    modules = linear_modules(model)
    if isinstance(targets, str):
        if targets == "all-linear":
            return modules
        return {name: module for name, module in modules.items() if re.fullmatch(targets, name)}
    suffixes = tuple(f".{target}" for target in targets)
    return {name: module for name, module in modules.items() if f".{name}".endswith(suffixes)}


def _card(settings: LoraSettings, base_model: str, note: str) -> str:
    return f"""---
base_model: {base_model}
library_name: peft
tags: [lora, practicum]
---

# A policy learned on the job

LoRA adapter (rank {settings.rank}, alpha {settings.alpha:g}, all linear layers) over `{base_model}`,
trained by Practicum.
{note}

Load it with `peft.PeftModel.from_pretrained(base, folder)`, or serve it with any engine that takes peft adapters.
What it was trained on, how it was compared with its predecessor, and who let it go live stand in the decision record
of the Practicum store that published it.
"""

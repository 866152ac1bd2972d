"""Whole models as tensors and as folders: what training every weight publishes, and what a sampler loads as a version.

Tensors have the names of the transformers module, tied ones once; the folder is one that transformers loads. It has no
tokenizer: that stays the base model's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from practicum.engines.embedded.files import atomic_folder
from practicum.errors import Conflict, CorruptArtifact
from practicum.types.digests import folder_digest

WEIGHTS_FILE = "model.safetensors"
_CARD = """---
library_name: transformers
base_model: {base}
---

All weights of {base}, trained by Practicum. The tokenizer is the base model's.
"""


def check_whole(state: Mapping[str, torch.Tensor], model: Any) -> None:
    """Raise CorruptArtifact unless `state` holds exactly the model's parameters, in shape and finite."""
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if missing := sorted(shapes.keys() ^ state.keys()):
        raise CorruptArtifact(
            f"the weights differ from the base model's in {len(missing)} names, first {missing[0]}.",
            hint="Are they weights of another base model?",
        )
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise CorruptArtifact(f"the weights' {name} has shape {tuple(state[name].shape)}, expected {shape}.")
        if not torch.isfinite(state[name]).all():
            raise CorruptArtifact(f"the weights' {name} holds a value that is not finite.")


def is_whole(folder: Path) -> bool:
    """Whether a policy's folder holds a whole model."""
    return (folder / WEIGHTS_FILE).exists()


def read_whole(folder: Path, model: Any, *, digest: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors in a folder, checked: its digest (where given), every tensor against `model`.

    Raises: CorruptArtifact for anything that does not match.
    """
    try:
        if digest is not None and (found := folder_digest(folder)) != digest:
            raise CorruptArtifact(f"the weights in {folder} have digest {found[:16]}…, recorded was {digest[:16]}….")
        state: dict[str, torch.Tensor] = load_file(folder / WEIGHTS_FILE)
    except CorruptArtifact:
        raise
    except Exception as error:  # whatever a damaged file makes safetensors raise
        raise CorruptArtifact(f"the weights in {folder} cannot be read: {error}") from error
    check_whole(state, model)
    return state


def write_whole(folder: Path, state: Mapping[str, torch.Tensor], model: Any, *, base_model: str) -> str:
    """Write weights, config and a model card, atomically, and return the folder's digest.

    Writing the same weights to the same place again is allowed. Raises: Conflict if others stand there.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    digest = ""
    try:
        with atomic_folder(folder) as draft:
            config.save_pretrained(draft)
            tensors = {name: state[name].detach().cpu().contiguous() for name in sorted(state)}
            save_file(tensors, draft / WEIGHTS_FILE, metadata={"format": "pt"})
            (draft / "README.md").write_text(_CARD.format(base=base_model))
            digest = folder_digest(draft)
    except FileExistsError as error:
        if folder.is_dir() and folder_digest(folder) == digest:
            return digest
        raise Conflict(f"{error}; weights are never overwritten.", hint="Publish to a new folder.") from error
    return digest

"""A trainer's state on disk: one safetensors file, one JSON file, and a manifest that covers both. No pickle.

Any flipped bit, missing or extra file is found on reading: the manifest holds the other files' SHA-256 and its own, and
must be byte for byte the canonical form of what it says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save_file

from practicum.engines.embedded.files import atomic_folder
from practicum.errors import Conflict, CorruptArtifact
from practicum.types.digests import file_digest, folder_digest

FORMAT = "practicum-trainer/1"
TENSORS_FILE = "state.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
_FILES = (STATE_FILE, TENSORS_FILE)


def write_checkpoint(folder: Path, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> str:
    """Write a checkpoint atomically and return its digest. Raises Conflict if something else stands there."""
    digest = ""
    try:
        with atomic_folder(folder) as draft:
            save_file({name: tensors[name].detach().contiguous() for name in sorted(tensors)}, draft / TENSORS_FILE)
            (draft / STATE_FILE).write_bytes(_canonical(state))
            files = {name: file_digest(draft / name) for name in _FILES}
            (draft / MANIFEST_FILE).write_bytes(_signed({"files": files, "format": FORMAT}))
            digest = folder_digest(draft)
    except FileExistsError as error:
        if folder.is_dir() and folder_digest(folder) == digest:
            return digest
        raise Conflict(f"{error}; a checkpoint is never overwritten.", hint="Save to a new folder.") from error
    return digest


def read_checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and state, verified. Raises CorruptArtifact."""
    try:
        names = {entry.name for entry in folder.iterdir()}
        if names != {*_FILES, MANIFEST_FILE}:
            raise CorruptArtifact(
                f"the checkpoint {folder} holds {sorted(names)}, expected {sorted(_FILES)} and a manifest."
            )
        blob = (folder / MANIFEST_FILE).read_bytes()
        manifest = json.loads(blob)
        if blob != _signed({key: value for key, value in manifest.items() if key != "sha256"}):
            raise CorruptArtifact(f"the manifest of the checkpoint {folder} was altered.")
        if manifest["format"] != FORMAT:
            raise CorruptArtifact(f"the checkpoint {folder} has format {manifest['format']!r}, expected {FORMAT!r}.")
        content = {name: (folder / name).read_bytes() for name in _FILES}
        for name, data in content.items():
            if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
                raise CorruptArtifact(f"{name} of the checkpoint {folder} does not match its SHA-256.")
        return load(content[TENSORS_FILE]), json.loads(content[STATE_FILE])
    except CorruptArtifact:
        raise
    except Exception as error:  # whatever damaged bytes make the parsers raise
        raise CorruptArtifact(f"the checkpoint {folder} cannot be read: {type(error).__name__}: {error}") from error


def _canonical(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _signed(manifest: Mapping[str, Any]) -> bytes:
    return _canonical({**manifest, "sha256": hashlib.sha256(_canonical(manifest)).hexdigest()})

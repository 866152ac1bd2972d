"""Which kind of policy trains a model, and where its tensors lie."""

from __future__ import annotations

import copy
from typing import Any

import torch

from practicum.engines.embedded.body import fits_fused
from practicum.engines.embedded.full import FullPolicy
from practicum.engines.embedded.lora import LoraPolicy, PeftPolicy
from practicum.engines.embedded.policy import Policy
from practicum.engines.embedded.settings import LoraSettings, TrainerSettings
from practicum.errors import ConfigError


def placed(model: Any, settings: TrainerSettings) -> Any:
    """The model on the settings' device, in their number type: itself where it is so already, else a copy.

    Raises: ConfigError for a device that torch does not see, and for full weights in anything but float32.
    """
    device, dtype = torch.device(settings.device), getattr(torch, settings.dtype)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("torch sees no CUDA device.", param="device")
    if settings.weights == "full" and dtype != torch.float32:
        raise ConfigError(
            f"full weights are not trained in {settings.dtype}: a small step would be rounded away.",
            param="dtype",
            hint="Use float32, or train an adapter.",
        )
    first = next(model.parameters())
    if first.dtype == dtype and first.device.type == device.type:
        return model
    return copy.deepcopy(model).to(device=device, dtype=dtype)


def policy_of(model: Any, lora: LoraSettings, *, whole: bool) -> Policy:
    """The kind that fits the model: an adapter trains, or (`whole`) all of its weights."""
    if whole:
        return FullPolicy(model)
    return LoraPolicy(model, lora) if fits_fused(model) else PeftPolicy(model, lora)

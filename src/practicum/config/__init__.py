"""Configuration: one model per subsystem; overrides over environment over TOML over defaults.

Torch-free and quick to import. Unknown keys are errors, wherever they come from.
"""

from practicum.config.learning import CurationConfig, EvalsConfig, GateConfig, LearnConfig, TrainConfig
from practicum.config.loading import Config, config_file, flatten, known_keys, load_config, origins
from practicum.config.serving import (
    FeedbackConfig,
    GatewayConfig,
    ModelConfig,
    RolloutsConfig,
    ServerConfig,
    default_cache_dir,
)

__all__ = [
    "Config",
    "CurationConfig",
    "EvalsConfig",
    "FeedbackConfig",
    "GateConfig",
    "GatewayConfig",
    "LearnConfig",
    "ModelConfig",
    "RolloutsConfig",
    "ServerConfig",
    "TrainConfig",
    "config_file",
    "default_cache_dir",
    "flatten",
    "known_keys",
    "load_config",
    "origins",
]

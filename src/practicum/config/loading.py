"""Where each value comes from: overrides, then the environment, then a TOML file, then the defaults.

Every key that is given is checked against the models, wherever it came from; one that does not exist is an error that
names its nearest match. An environment variable is `PRACTICUM_HOME`, or `PRACTICUM_` + section + `__` + key. Text from
the environment and from overrides is read by the field's type: a list is JSON or comma-separated, and `none` or
nothing at all stands for no value where the field may have none.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator

from practicum.config.learning import CurationConfig, EvalsConfig, GateConfig, LearnConfig, TrainConfig
from practicum.config.section import Section
from practicum.config.serving import FeedbackConfig, GatewayConfig, ModelConfig, RolloutsConfig, ServerConfig
from practicum.errors import ConfigError

DEFAULT_FILE = "practicum.toml"
ENV_PREFIX = "PRACTICUM_"
# Variables with the prefix that are not configuration: the client's.
_OTHER_VARIABLES = frozenset({"PRACTICUM_BASE_URL", "PRACTICUM_API_KEY"})


class Config(Section):
    """The whole configuration. `home` holds everything that Practicum writes."""

    home: Path = Path(".practicum")
    server: ServerConfig = Field(default_factory=ServerConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    gateway: GatewayConfig = Field(default_factory=GatewayConfig)
    feedback: FeedbackConfig = Field(default_factory=FeedbackConfig)
    rollouts: RolloutsConfig = Field(default_factory=RolloutsConfig)
    learn: LearnConfig = Field(default_factory=LearnConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    gate: GateConfig = Field(default_factory=GateConfig)
    evals: EvalsConfig = Field(default_factory=EvalsConfig)
    curation: CurationConfig = Field(default_factory=CurationConfig)

    @field_validator("home")
    @classmethod
    def _expand_user(cls, home: Path) -> Path:
        return home.expanduser()

    @property
    def store_path(self) -> Path:
        """The SQLite file."""
        return self.home / "practicum.db"

    @property
    def policies_dir(self) -> Path:
        """One folder per policy version."""
        return self.home / "policies"

    @property
    def runs_dir(self) -> Path:
        """One folder per learning run."""
        return self.home / "runs"


@dataclass(frozen=True, slots=True)
class _Given:
    """A value that someone gave, and who: `origin` is what `config show --origin` prints."""

    value: Any
    origin: str


def load_config(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration from all its sources.

    Args:
        path: a TOML file; None takes `practicum.toml` in the working folder where it exists.
        overrides: dotted keys (`server.port`) and their text.
        environ: environment variables; None takes the process's.

    Raises: ConfigError for an unknown key, a value that does not fit, or a file that cannot be read.
    """
    given = _gather(path, overrides or {}, os.environ if environ is None else environ)
    nested: dict[str, Any] = {}
    for key, item in given.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = item.value
    try:
        return Config.model_validate(nested)
    except ValidationError as error:
        raise _value_error(error, given) from error


def config_file(path: Path | None = None) -> Path | None:
    """The file that `load_config` reads, None where it reads none."""
    file = Path(DEFAULT_FILE) if path is None else path
    return file if path is not None or file.is_file() else None


def origins(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Every dotted key and where its value comes from: `default`, `file ...`, `env ...` or `override`."""
    given = _gather(path, overrides or {}, os.environ if environ is None else environ)
    return {key: given[key].origin if key in given else "default" for key in known_keys()}


def flatten(config: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Every dotted key and its value."""
    flat: dict[str, Any] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def known_keys() -> list[str]:
    """Every dotted key that there is."""
    return [key for key, _ in _leaves(Config)]


def _gather(path: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, _Given]:
    leaves = dict(_leaves(Config))
    given = dict(_from_file(path, leaves))
    for variable, text in environ.items():
        if variable.startswith(ENV_PREFIX) and variable not in _OTHER_VARIABLES:
            key = variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            _require_known(key, leaves, f"The environment variable {variable}", _variable)
            given[key] = _Given(_read_text(text, leaves[key]), f"env {variable}")
    for key, text in overrides.items():
        _require_known(key, leaves, f"The override {key!r}", str)
        given[key] = _Given(_read_text(text, leaves[key]), "override")
    return given


def _from_file(path: Path | None, leaves: Mapping[str, Any]) -> Iterator[tuple[str, _Given]]:
    file = config_file(path)
    if file is None:
        return
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The configuration {file} cannot be read: {error.strerror}.", hint="Check the path."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {file} is not TOML: {error}.", hint="Mend that line.") from error
    sections = {key.rpartition(".")[0] for key in leaves}
    for key, value in _walk(content, sections, leaves):
        _require_known(key, leaves, f"The key {key!r} in {file}", str)
        yield key, _Given(value, f"file {file}")


def _walk(table: Mapping[str, Any], sections: set[str], leaves: Mapping[str, Any], prefix: str = "") -> Iterator[Any]:
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key not in leaves:
            if key not in sections:
                _require_known(key, {section: None for section in sections if section}, f"The section [{key}]", str)
            yield from _walk(value, sections, leaves, f"{key}.")
        else:
            yield key, value


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field.annotation


def _require_known(key: str, known: Mapping[str, Any], what: str, spell: Any) -> None:
    if key in known:
        return
    same_name = [candidate for candidate in known if candidate.rpartition(".")[2] == key.rpartition(".")[2]]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6) or same_name[:1]
    if near:
        hint = f"Did you mean {spell(near[0])}?"
    else:
        hint = f"`practicum config show` lists what there is; for example {spell(next(iter(known)))}."
    raise ConfigError(f"{what} is not known.", hint=hint, code="unknown_key", param=key)


def _variable(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__")


def _read_text(text: str, annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        if type(None) in get_args(annotation) and text.strip().lower() in ("", "none"):
            return None
        annotation = next(option for option in get_args(annotation) if option is not type(None))
    if get_origin(annotation) in (list, tuple, dict, set, frozenset) and text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    if get_origin(annotation) in (list, tuple, set, frozenset):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _value_error(error: ValidationError, given: Mapping[str, _Given]) -> ConfigError:
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]
    key = ".".join(parts)
    while parts and key not in given:
        parts.pop()
        key = ".".join(parts)
    origin = f" (from {given[key].origin})" if key in given else ""
    name = key or ".".join(str(part) for part in first["loc"])
    return ConfigError(
        f"{name} = {first['input']!r}{origin} does not fit: {first['msg'].lower()}.",
        hint=f"Change {name}, or leave it out to take the default.",
        param=name,
    )

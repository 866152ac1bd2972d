"""The serving half's sections: the socket, the model, the gateway and the feedback routes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from practicum.config.section import Section

MIB = 1024 * 1024


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/practicum`, or `~/.cache/practicum`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "practicum"


class ServerConfig(Section):
    """Where the server listens, and how much and how long it takes in. Beyond loopback only where asked."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8787, ge=0, le=65535)
    max_body_bytes: int = Field(default=32 * MIB, gt=0)
    header_timeout_s: float = Field(default=10.0, gt=0)
    body_timeout_s: float = Field(default=60.0, gt=0)


class ModelConfig(Section):
    """Which model is served, and with what. `threads` 0 chooses; `context_length` none takes the model's own.

    `parser` names the family whose calls and reasoning are read from answers; none takes what the template shows.
    """

    id: str = Field(default="smollm2-135m-instruct", min_length=1)
    cache_dir: Path | None = None
    threads: int = Field(default=0, ge=0)
    max_batch: int = Field(default=32, gt=0)
    context_length: int | None = Field(default=None, gt=0)
    parser: str | None = None

    @property
    def cache_path(self) -> Path:
        """`cache_dir`, or the user's cache folder."""
        return default_cache_dir() if self.cache_dir is None else self.cache_dir.expanduser()


class GatewayConfig(Section):
    """The model endpoint: the name it answers to, and how often it looks for a new live policy.

    `dropped_reasoning` says what it means that a request holds an answer of ours without its reasoning. `infer`: the
    episode forks if the caller sends other reasoning back in that conversation, and goes on if it never does, as a
    harness that cannot. `extend`: it always goes on from the served ids, reasoning included. `fork`: it always forks.
    """

    model_name: str = Field(default="practicum", min_length=1)
    aliases: list[str] = Field(default_factory=list)
    default_max_tokens: int = Field(default=256, gt=0)
    policy_poll_s: float = Field(default=0.5, gt=0)
    dropped_reasoning: Literal["infer", "extend", "fork"] = "infer"


class FeedbackConfig(Section):
    """Limits of what feedback may say."""

    max_comment_chars: int = Field(default=16384, gt=0)


class RolloutsConfig(Section):
    """The rollout service: whether it runs, how many rollouts may be in each stage, and what they are made with.

    `harnesses` and `graders` add the team's own to those that are shipped: a name, and `module:attribute` of an adapter
    or of a function from options to a grader. `gateway_url` is how sandboxes reach this server, where that is not its
    own address. `graders_folder` holds the Python files and Harbor tasks that tasks may name as graders,
    `environments_folder` the Python files of in-house environments; no sandbox of bubblewrap's shows them. `judge_url`
    and `judge_model` are the endpoint that scores rubrics, and `judge_key_env` names the variable with its key. The
    limits below `attempts` are of each sandbox's processes.
    """

    enabled: bool = False
    sandbox: str = Field(default="auto", min_length=1)
    harnesses: dict[str, str] = Field(default_factory=dict)
    graders: dict[str, str] = Field(default_factory=dict)
    graders_folder: Path | None = None
    environments_folder: Path | None = None
    judge_url: str | None = None
    judge_model: str = ""
    judge_key_env: str = "OPENAI_API_KEY"
    gateway_url: str | None = None
    callback_hosts: list[str] = Field(default_factory=list)
    prepare: int = Field(default=4, gt=0)
    ready: int = Field(default=8, gt=0)
    run: int = Field(default=8, gt=0)
    grade: int = Field(default=4, gt=0)
    open: int = Field(default=8, ge=0)
    attempts: int = Field(default=3, gt=0)
    cpu_s: float | None = Field(default=None, gt=0)
    memory_bytes: int | None = Field(default=None, gt=0)
    file_bytes: int | None = Field(default=None, gt=0)
    processes: int | None = Field(default=None, gt=0)

"""The error tree. Every error names its cause and the way out; programming errors are not in it and propagate.

PracticumError
├── UsageError                what the caller sent or configured is wrong                   (HTTP 400, exit 2)
│   ├── ConfigError           a configuration value or key
│   ├── RequestError          a request's content; names the field                          (HTTP 400)
│   │   └── ContextOverflow   the prompt does not fit the model's context                   (HTTP 400)
│   ├── NotFound              an id, a model, a policy version                              (HTTP 404)
│   ├── Unauthenticated       no key, or an unknown one                                     (HTTP 401)
│   ├── Forbidden             a known key that may not do this                              (HTTP 403)
│   ├── Conflict              the state does not allow it (already retracted, not a candidate) (HTTP 409)
│   └── MissingExtra          an optional dependency; names the command that installs it
├── StoreError                the record could not be made durable                          (HTTP 503)
│   └── SchemaError           the file was written by a newer release, or is not a store
├── EngineError               the sampler or the trainer failed                             (HTTP 503)
│   └── Unsupported           a backend lacks a capability; it is refused, never ignored
├── CorruptArtifact           an adapter or checkpoint whose digest or tensors do not match
└── GuardTripped              learning stopped itself: KL, length, repetition or zero signal
"""

from __future__ import annotations


class PracticumError(Exception):
    """Base of every error that a user can meet.

    Args:
        message: what happened and why, in one sentence.
        hint: what to do about it, in one sentence; printed after the message.
        code: a stable machine-readable name; defaults to the class's own.
        param: the request field at fault, where there is one.
    """

    code = "practicum_error"
    status = 500

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(PracticumError):
    """What the caller sent or configured is wrong."""

    code = "usage_error"
    status = 400


class ConfigError(UsageError):
    """A configuration value or key."""

    code = "config_error"


class RequestError(UsageError):
    """A request's content; `param` names the field."""

    code = "invalid_request"


class ContextOverflow(RequestError):
    """The prompt does not fit the model's context."""

    code = "context_length_exceeded"


class NotFound(UsageError):
    """An id, a model or a policy version that does not exist."""

    code = "not_found"
    status = 404


class Unauthenticated(UsageError):
    """No key, or an unknown one."""

    code = "invalid_api_key"
    status = 401


class Forbidden(UsageError):
    """A known key that may not do this."""

    code = "forbidden"
    status = 403


class Conflict(UsageError):
    """The state does not allow it."""

    code = "conflict"
    status = 409


class MissingExtra(UsageError):
    """An optional dependency is not installed; the hint is the command that installs it."""

    code = "missing_extra"


class StoreError(PracticumError):
    """The record could not be made durable."""

    code = "store_unavailable"
    status = 503


class SchemaError(StoreError):
    """The file was written by a newer release, or is not a store."""

    code = "store_schema"


class EngineError(PracticumError):
    """The sampler or the trainer failed."""

    code = "engine_unavailable"
    status = 503


class Unsupported(EngineError):
    """A backend lacks a capability; it is refused, never ignored."""

    code = "unsupported"
    status = 400


class CorruptArtifact(PracticumError):
    """An adapter or checkpoint whose digest or tensors do not match."""

    code = "corrupt_artifact"


class GuardTripped(PracticumError):
    """Learning stopped itself: KL, length, repetition or zero signal. `log` holds the steps up to there."""

    code = "guard_tripped"
    log: tuple[object, ...] = ()

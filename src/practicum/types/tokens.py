"""What crosses the sampler seam: token ids in; ids, logprobs, policy version and finish reason out.

Two logprobs belong to a sampled token. `logprobs` is the raw one: log-softmax of the logits divided by the
temperature, over the whole vocabulary; the trainer recomputes it at the same temperature. Greedy decoding
(temperature 0) has no tempered distribution, so its raw logprob is taken at temperature 1.
`sampled_logprobs` is renormalised over what top-k, top-p and min-p left; it equals the raw one where they are off.
A logprob that is not known is None, never 0.0, which would claim probability 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "aborted", "error"]


ConstraintKind = Literal["json_schema", "json_object", "regex", "grammar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What a completion must match, enforced while it is sampled.

    `text` is the schema as JSON, the regular expression, or a grammar in Lark notation; empty for `json_object`.
    Where `strict` is False, an engine may leave out keywords of a schema that it cannot enforce; otherwise it refuses
    them. `source` is the request's field that asks for it, for errors.
    """

    kind: ConstraintKind
    text: str = ""
    strict: bool = True
    source: str = field(default="constraint", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. `top_k` 0, `top_p` 1 and `min_p` 0 switch truncation off; `min_p` is a share of the most probable
    token's probability. `stop` strings act on text, in the gateway.

    Under a `constraint`, `logprobs` stay those of the policy itself; `sampled_logprobs` are renormalised over what the
    constraint and the truncation left.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    constraint: Constraint | None = None

    @property
    def scoring_temperature(self) -> float:
        """The temperature at which `logprobs` were taken and must be recomputed."""
        return self.temperature if self.temperature > 0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One sequence to sample: `prompt_ids: [P]`, under policy `version`, until one of `stop_ids` or `max_tokens`."""

    request_id: str
    prompt_ids: tuple[int, ...]
    version: int
    stop_ids: tuple[int, ...] = ()
    params: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChunk:
    """Freshly sampled tokens, in order: `ids`, `logprobs`, `sampled_logprobs`: [n], all by policy `version`.

    The last chunk of a sequence carries the finish reason (and may carry no token). A sampled stop id is part of
    `ids`: it was sampled, so it is on record and can be trained on.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    sampled_logprobs: tuple[float | None, ...]
    version: int
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.logprobs) == len(self.sampled_logprobs):
            raise ValueError(
                f"ids, logprobs and sampled_logprobs differ in length: "
                f"{len(self.ids)}, {len(self.logprobs)}, {len(self.sampled_logprobs)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """A sampled token as callers who ask for logprobs see it."""

    text: str
    logprob: float | None

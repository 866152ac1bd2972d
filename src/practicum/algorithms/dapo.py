"""DAPO: decoupled clip and dynamic sampling policy optimisation (arXiv 2503.14476), all four parts.

1. Clip-higher: clip(rho, 1 - .2, 1 + .28), so that what was improbable may still be learned.
2. Dynamic sampling: a group whose rewards are all the same is discarded and `resamples` asks for further ones.
3. Token-level loss: a sum over all tokens of the step, divided by their number.
4. Overlong: a rollout that was cut off is masked (`mask_truncated`), and, once `overlong_length` is set, one that comes
   near it is punished: with L = overlong_length, C = overlong_buffer and |y| its sampled tokens

       r' = r + factor * min(0, max(-1, (L - C - |y|) / C))

    A_i = (r'_i - mean_g r') / (std_g r' + 1e-4)

Deviations: 1. The ratio is to the sampler's own logprobs unless `against = "proximal"`. 2. Whether a group has a signal
is judged by its rewards before the punishment, as in the paper by right and wrong: lengths alone teach nothing. 3. The
masking and the punishment act together, as the paper's soft punishment replaces its masking; switch either off. 4. The
punishment is off until the limit is told (paper: 20480 and 4096), since it depends on what is asked of the sampler.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from practicum.algorithms.group import Aggregation, ClipOptions, Graded, GroupOptions
from practicum.algorithms.grpo import Grpo


class DapoOptions(ClipOptions):
    """`overlong_length`: the most tokens a rollout may sample; `overlong_buffer`: how many of the last cost."""

    clip_high: float = Field(0.28, ge=0)
    scale: Literal["none", "group", "batch"] = "group"
    aggregation: Aggregation = "dapo"
    mask_truncated: bool = True
    overlong_length: PositiveInt | None = None
    overlong_buffer: PositiveInt | None = None
    overlong_factor: float = Field(1.0, ge=0)

    @model_validator(mode="after")
    def _has_buffer(self) -> DapoOptions:
        length, buffer = self.overlong_length, self.overlong_buffer
        if (length is None) != (buffer is None) or (length or 0) < (buffer or 0):
            raise ValueError("overlong_length and overlong_buffer belong together, and the buffer is the smaller one")
        return self


class Dapo(Grpo):
    """GRPO with the four parts."""

    name = "dapo"
    Options: ClassVar[type[GroupOptions]] = DapoOptions
    resamples = True
    options: DapoOptions

    def shaped(self, rollout: Graded) -> float:
        """The reward less what the last tokens before the limit cost."""
        return super().shaped(rollout) + self._punishment(rollout.length)

    def _punishment(self, length: int) -> float:
        limit, buffer = self.options.overlong_length, self.options.overlong_buffer
        if limit is None or buffer is None:
            return 0.0
        return self.options.overlong_factor * min(0.0, max(-1.0, (limit - buffer - length) / buffer))

"""When training stops itself: distance, length, repetition, a sampler that disagrees, no signal.

Distillation alone can drive entropy and KL up and length down; a guard ends the run and says which figure left its
bounds, and nothing is released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.errors import GuardTripped


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Bounds on the means over the last `window` steps that have the figure.

    `max_kl`: nats per token to the starting policy on the trained rows. `min_length`, `max_length`: tokens of a fresh
    answer. `max_repetition`: share of fresh answers that loop. `max_logprob_gap`: nats between sampler and trainer on
    fresh tokens. `max_idle_steps`: steps in a row without signal.
    """

    max_kl: float = 2.0
    min_length: float = 3.0
    max_length: float = float("inf")
    max_repetition: float = 0.5
    max_logprob_gap: float = 1e-3
    max_idle_steps: int = 20
    window: int = 4

    def check(self, log: Sequence[Mapping[str, Any]]) -> None:
        """Raise GuardTripped if the newest steps leave a bound."""
        self._above(log, "distill/kl", self.max_kl, "nats per token away from the starting policy")
        self._above(log, "policy_gradient/kl", self.max_kl, "nats per token away from the starting policy")
        self._above(log, "fresh_length", self.max_length, "tokens is what a fresh answer has come to")
        self._above(log, "fresh_repetition", self.max_repetition, "of the fresh answers repeat themselves")
        gap = log[-1].get("logprob_gap", 0.0) if log else 0.0
        if not gap <= self.max_logprob_gap:
            raise GuardTripped(
                f"The sampler's logprobs and the trainer's differ by {gap:.2g} nats on the same weights.",
                hint="They do not hold the same policy; nothing was released.",
            )
        length = self._mean(log, "fresh_length")
        if length is not None and length < self.min_length:
            raise GuardTripped(f"A fresh answer has come down to {length:.1f} tokens, below {self.min_length:.1f}.")
        newest = log[-self.max_idle_steps :]
        if len(newest) == self.max_idle_steps and all(figures.get("skipped") for figures in newest):
            raise GuardTripped(
                f"{self.max_idle_steps} steps in a row had no signal{_left_out(newest[-1])}.",
                hint="Rows teach nothing where every reward of their group is the same, or where nothing was graded.",
            )

    def _above(self, log: Sequence[Mapping[str, Any]], name: str, bound: float, meaning: str) -> None:
        value = self._mean(log, name)
        if value is not None and not value <= bound:
            raise GuardTripped(f"{value:.4g} {meaning}; the bound is {bound:.4g}.", hint="Nothing was released.")

    def _mean(self, log: Sequence[Mapping[str, Any]], name: str) -> float | None:
        values = [float(figures[name]) for figures in log[-self.window :] if name in figures]
        return sum(values) / len(values) if len(values) == self.window else None


def _left_out(figures: Mapping[str, Any]) -> str:
    """Why a step's rollouts taught nothing, where its rows were rollouts."""
    known = {name.removeprefix("left_out/"): n for name, n in figures.items() if name.startswith("left_out/")}
    listed = ", ".join(f"{n:g} because {reason}" for reason, n in known.items())
    return f"; of the last one's rollouts were left out: {listed}" if listed else ""

"""From hidden states to gradients on them: the losses over a micro-batch, some positions at a time.

The logits of all positions never exist together: those of a slice are made, judged, turned into a gradient and dropped,
so the vocabulary costs the same memory whatever the batch; a sum over slices is the sum over all. Only positions of
non-zero weight enter a loss; the others' gradient is exactly zero because nothing is computed there.
Legend: N completion tokens, n those of a slice, E hidden size, V vocabulary, A those of non-zero weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from practicum.algorithms import losses, surrogates
from practicum.engines.embedded.batches import Targets
from practicum.engines.embedded.settings import TrainerSettings
from practicum.types.training import LossName, PolicyGradient

# Logits that exist at a time, in numbers; a handful of tensors of this size do.
_MOST_LOGITS = 6_000_000

# Logits [n, V] of a frozen policy at some of the completion tokens.
Frozen = Callable[[torch.Tensor], torch.Tensor]
Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class Objective:
    """Sums of a micro-batch: the loss, named figures, and `gradient: [N, E]` of the loss on the hidden states."""

    loss_sum: float
    sums: dict[str, float]
    gradient: torch.Tensor
    logprobs: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def evaluate(
    name: LossName,
    hidden_NE: torch.Tensor,
    head: Head,
    targets: Targets,
    settings: TrainerSettings,
    *,
    policy_gradient: PolicyGradient = PolicyGradient(),
    teacher: Frozen | None = None,
    reference: Frozen | None = None,
) -> Objective:
    """Loss, figures, gradient on `hidden_NE` and the recomputed logprobs [N], at each row's own temperature.

    Parameters of `head` that ask for gradients accumulate theirs. With `reference`, `kl_coef * sum_t w_t KL(pi||ref)`
    is added and `kl_sum` is the unweighted sum over A. Where a token's weight depends on logprobs of its whole row, all
    of them are computed before the first gradient is.
    """
    hidden_NE = hidden_NE.detach()
    size = _slice_size(head, hidden_NE)
    result = Objective(0.0, {}, torch.zeros_like(hidden_NE), torch.zeros(len(targets.ids), device=hidden_NE.device))
    active_N = targets.weights != 0
    whole_rows = name == "policy_gradient" and policy_gradient.needs_rows
    first_pass_N = torch.ones_like(active_N) if whole_rows else ~active_N
    for index in _slices(first_pass_N, size):
        result.logprobs[index] = _logprobs(head, hidden_NE[index], targets.at(index))
    given = _token_loss(name, result.logprobs, targets, policy_gradient) if whole_rows else None
    sums: dict[str, float] = defaultdict(float)
    for index in _slices(active_N, size):
        leaf_nE = hidden_NE[index].requires_grad_()
        logits_nV = head(leaf_nE)
        part = _Slice(logits_nV.detach().float(), targets.at(index), settings, policy_gradient)
        if name == "distill":
            assert teacher is not None
            part.distill(teacher(index).float())
        else:
            part.token_loss(name, None if given is None else given.coefficients[index])
        if reference is not None:
            part.anchor(name, reference(index).float())
        logits_nV.backward(part.gradient_nV.to(logits_nV.dtype))  # type: ignore[no-untyped-call]
        assert leaf_nE.grad is not None
        result.gradient[index] = leaf_nE.grad
        result.logprobs[index] = part.logprobs_n
        result.loss_sum += part.loss
        for key, value in part.figures.items():
            sums[key] += float(value)
    if given is not None:
        result.loss_sum += given.loss
        sums.update({key: float(value) for key, value in given.figures.items()})
    sums["weight_sum"] = float(targets.weights.double().sum())
    result.sums = {**sums, **_mismatch(result.logprobs, targets)}
    return result


@torch.no_grad()
def logprobs_of(head: Head, hidden_NE: torch.Tensor, targets: Targets) -> torch.Tensor:
    """Tempered logprobs `[N]` of the targets alone."""
    size = _slice_size(head, hidden_NE)
    parts = [
        _logprobs(head, hidden_NE[start : start + size], targets.at(slice(start, start + size)))
        for start in range(0, len(hidden_NE), size)
    ]
    return torch.cat(parts) if parts else torch.empty(0)


class _Slice:
    """Loss, figures and gradient on the logits of some positions, added up part by part."""

    def __init__(
        self, logits_nV: torch.Tensor, targets: Targets, settings: TrainerSettings, policy_gradient: PolicyGradient
    ) -> None:
        self.loss = 0.0
        self._raw_nV = logits_nV
        self._targets, self._settings, self._policy_gradient = targets, settings, policy_gradient
        self._rates_n1 = 1 / targets.temperatures[:, None]
        self._logp_nV = _log_softmax(logits_nV, targets)
        self._p_nV = self._logp_nV.exp()
        self.logprobs_n = self._logp_nV.gather(1, targets.ids[:, None]).squeeze(1)
        self.gradient_nV = torch.empty(0)
        self.figures: dict[str, torch.Tensor] = {"entropy_sum": -_expect(self._p_nV, self._logp_nV).sum()}

    def token_loss(self, name: LossName, given_n: torch.Tensor | None) -> None:
        """A loss of the sampled tokens' logprobs: its derivatives by them, times those of a log-softmax."""
        if given_n is None:
            found = _token_loss(name, self.logprobs_n, self._targets, self._policy_gradient)
            given_n = found.coefficients
            self.loss += found.loss
            self.figures.update(found.figures)
        self.gradient_nV = torch.zeros_like(self._p_nV)
        self._push(given_n)

    def _push(self, by_logprob_n: torch.Tensor) -> None:
        scaled_n1 = by_logprob_n[:, None] * self._rates_n1
        self.gradient_nV.addcmul_(self._p_nV, scaled_n1, value=-1)
        self.gradient_nV.scatter_add_(1, self._targets.ids[:, None], scaled_n1)

    def distill(self, teacher_nV: torch.Tensor) -> None:
        """The divergence from the teacher."""
        leaf_nV = self._raw_nV.requires_grad_()
        loss, figures = _distill(leaf_nV, teacher_nV, self._targets, self._settings)
        (self.gradient_nV,) = torch.autograd.grad(loss, leaf_nV)
        self.loss += float(loss.detach())
        self.figures.update(figures)

    def anchor(self, name: LossName, reference_nV: torch.Tensor) -> None:
        """KL to the reference, exact or of the sampled tokens. d KL / d z_v = p_v (log p_v - log q_v - KL)."""
        targets, settings = self._targets, self._policy_gradient
        logq_nV = _log_softmax(reference_nV, targets)
        if name == "policy_gradient" and settings.kl_coef and settings.kl_kind != "full":
            frozen_n = logq_nV.gather(1, targets.ids[:, None]).squeeze(1)
            found = surrogates.anchor(self.logprobs_n, frozen_n, targets.sampler_logprobs, targets.weights, settings)
            self.loss += float(found.value.sum())
            self._push(-found.push)
        apart_nV = self._logp_nV - logq_nV
        kl_n = _expect(self._p_nV, apart_nV)
        self.figures["kl_sum"] = kl_n.sum()
        if coefficient := _exact_kl_coef(name, self._settings, settings):
            weights_n = coefficient * targets.weights
            self.loss += float((weights_n * kl_n).sum())
            pull_nV = torch.where(self._p_nV > 0, apart_nV - kl_n[:, None], 0.0).mul_(self._p_nV)
            self.gradient_nV.addcmul_(pull_nV, weights_n[:, None] * self._rates_n1)


def _slices(wanted_N: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Indices of the wanted positions, `size` at a time."""
    return (index for index in torch.split(wanted_N.nonzero().squeeze(1), size) if len(index))


@torch.no_grad()
def _slice_size(head: Head, hidden_NE: torch.Tensor) -> int:
    return max(1, _MOST_LOGITS // head(hidden_NE[:1]).shape[-1]) if len(hidden_NE) else 1


def _log_softmax(logits_nV: torch.Tensor, targets: Targets) -> torch.Tensor:
    plain = bool((targets.temperatures == 1).all())
    return torch.log_softmax(logits_nV if plain else logits_nV / targets.temperatures[:, None], dim=-1)


def _expect(p_nV: torch.Tensor, values_nV: torch.Tensor) -> torch.Tensor:
    """sum_v p_v x_v with 0 * inf = 0: `[n]`."""
    found_n: torch.Tensor = torch.linalg.vecdot(p_nV, values_nV)
    if not bool(torch.isfinite(found_n).all()):
        found_n = (p_nV * torch.where(p_nV > 0, values_nV, 0.0)).sum(-1)
    return found_n


@torch.no_grad()
def _logprobs(head: Head, hidden_nE: torch.Tensor, part: Targets) -> torch.Tensor:
    logp_nV = _log_softmax(head(hidden_nE).float(), part)
    return logp_nV.gather(1, part.ids[:, None]).squeeze(1)


@dataclass(frozen=True, slots=True)
class _TokenLoss:
    """A loss of sampled tokens' logprobs: its value, its derivative by each of them `[N]`, and figures."""

    loss: float
    coefficients: torch.Tensor
    figures: dict[str, torch.Tensor]


def _token_loss(name: LossName, logprobs: torch.Tensor, part: Targets, settings: PolicyGradient) -> _TokenLoss:
    """The logprobs must be those of whole rows where `settings.needs_rows`."""
    if name == "cross_entropy":
        return _TokenLoss(float(losses.cross_entropy(logprobs, part.weights)), -part.weights, {})
    found = surrogates.coefficients(
        logprobs,
        part.sampler_logprobs,
        part.advantages,
        part.weights,
        settings,
        rows_N=part.rows,
        old_N=part.old_logprobs,
    )
    figures = {f"{key}_sum": value for key, value in found.figures.items()}
    return _TokenLoss(float(found.value.sum()), -found.push, figures)


def _exact_kl_coef(name: LossName, settings: TrainerSettings, policy_gradient: PolicyGradient) -> float:
    """The weight of the KL over the whole vocabulary: the trainer's own anchor, and the policy gradient's if full."""
    full = name == "policy_gradient" and policy_gradient.kl_kind == "full"
    return settings.distill.kl_coef + (policy_gradient.kl_coef if full else 0.0)


def _distill(
    student: torch.Tensor, teacher: torch.Tensor, part: Targets, settings: TrainerSettings
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Both distributions at the temperature of the settings: at a row's own, a low one would all but hide the tokens
    that the student rarely samples and the teacher asks for. What a person wrote is cloned instead.
    """
    chosen = settings.distill
    cloned = losses.cross_entropy(
        losses.token_logprobs(student, part.ids), torch.where(part.written, part.weights, 0.0)
    )
    loss, divergence = losses.distill(
        student / chosen.temperature,
        teacher / chosen.temperature,
        torch.where(part.written, 0.0, part.weights),
        kind=chosen.divergence,
        alpha=chosen.alpha,
        top_k=chosen.top_k,
        clip=chosen.clip,
    )
    return loss + cloned, {"divergence_sum": divergence[~part.written].sum()}


def _mismatch(logprobs: torch.Tensor, targets: Targets) -> dict[str, float]:
    """|log pi - log mu| over tokens of non-zero weight whose sampler logprob is known: the standing alarm."""
    known = ~targets.sampler_logprobs.isnan() & (targets.weights != 0)
    delta = (logprobs[known] - targets.sampler_logprobs[known]).abs()
    return {
        "logprob_delta_sum": float(delta.double().sum()),
        "logprob_delta_max": float(delta.max()) if len(delta) else 0.0,
        "logprob_delta_tokens": float(len(delta)),
    }

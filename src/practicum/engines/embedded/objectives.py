"""From logits to gradients on logits: the three losses over a micro-batch, a slice of positions at a time.

Only positions of non-zero weight enter a loss; the others' gradient is exactly zero because nothing is computed there.
Slicing bounds the memory for the [N, V] intermediates; a sum over slices is the sum over all.
Legend: N completion tokens, V vocabulary, A those of non-zero weight.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch

from practicum.algorithms import losses, surrogates
from practicum.engines.embedded.batches import Targets
from practicum.engines.embedded.settings import TrainerSettings
from practicum.types.training import LossName, PolicyGradient

_SLICE = 128


@dataclass(slots=True)
class Objective:
    """Sums of a micro-batch: the loss, named figures, and `gradient: [N, V]` of the loss on the logits."""

    loss_sum: float
    sums: dict[str, float]
    gradient: torch.Tensor
    logprobs: torch.Tensor = field(default_factory=lambda: torch.empty(0))


def evaluate(
    name: LossName,
    logits_NV: torch.Tensor,
    targets: Targets,
    settings: TrainerSettings,
    *,
    policy_gradient: PolicyGradient = PolicyGradient(),
    teacher_NV: torch.Tensor | None = None,
    reference_NV: torch.Tensor | None = None,
) -> Objective:
    """Loss, figures, gradient on `logits_NV` and the recomputed logprobs [N], at each row's own temperature.

    With `reference_NV`, `kl_coef * sum_t w_t KL(pi||ref)` is added and `kl_sum` is the unweighted sum over A.
    """
    logits_NV = logits_NV.detach()
    result = Objective(0.0, {}, torch.zeros_like(logits_NV), _logprobs(logits_NV, targets))
    sums: dict[str, float] = defaultdict(float)
    pushes = None
    if name == "policy_gradient":
        pushes = _pushes(result.logprobs, targets, policy_gradient)
        sums.update({f"{key}_sum": float(value) for key, value in pushes.figures.items()})
    active_A = targets.weights.nonzero().squeeze(1)
    for index in torch.split(active_A, _SLICE):
        part = targets.at(index)
        temperatures = part.temperatures[:, None]
        leaf = logits_NV[index].float().requires_grad_()
        scaled = leaf / temperatures
        if name == "distill":
            assert teacher_NV is not None
            loss, figures = _distill(leaf, teacher_NV[index].float(), part, settings)
        else:
            loss, figures = _loss(scaled, part, None if pushes is None else pushes.at(index))
        if reference_NV is not None:
            kl = losses.full_kl(scaled, reference_NV[index].float() / temperatures)
            figures["kl_sum"] = kl.detach().sum()
            if coefficient := _exact_kl_coef(name, settings, policy_gradient):
                loss = loss + coefficient * (part.weights * kl).sum()
            if name == "policy_gradient":
                loss = loss + _sampled_anchor(scaled, reference_NV[index].float() / temperatures, part, policy_gradient)
        figures["entropy_sum"] = losses.entropy(scaled.detach()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        assert leaf.grad is not None
        result.gradient[index] = leaf.grad.to(result.gradient.dtype)
        result.loss_sum += float(loss.detach())
        for key, value in figures.items():
            sums[key] += float(value)
    sums["weight_sum"] = float(targets.weights.double().sum())
    result.sums = {**sums, **_mismatch(result.logprobs, targets)}
    return result


def _loss(
    scaled: torch.Tensor, part: Targets, pushes: surrogates.Coefficients | None
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    logprobs = losses.token_logprobs(scaled, part.ids)
    if pushes is None:
        return losses.cross_entropy(logprobs, part.weights), {}
    return surrogates.policy_gradient(logprobs, pushes), {}


def _pushes(logprobs: torch.Tensor, targets: Targets, settings: PolicyGradient) -> surrogates.Coefficients:
    """What each token is pushed by; the logprobs must be those of whole rows where `settings.needs_rows`."""
    return surrogates.coefficients(
        logprobs,
        targets.sampler_logprobs,
        targets.advantages,
        targets.weights,
        settings,
        rows_N=targets.rows,
        old_N=targets.old_logprobs,
    )


def _sampled_anchor(
    scaled: torch.Tensor, reference: torch.Tensor, part: Targets, settings: PolicyGradient
) -> torch.Tensor:
    """The KL of the sampled tokens to the reference, 0 where the policy gradient asks for the exact one."""
    if not settings.kl_coef or settings.kl_kind == "full":
        return scaled.new_zeros(())
    logprobs, frozen = (losses.token_logprobs(each, part.ids) for each in (scaled, reference))
    found = surrogates.anchor(logprobs, frozen, part.sampler_logprobs, part.weights, settings)
    return surrogates.policy_gradient(logprobs, found)


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


@torch.no_grad()
def _logprobs(logits_NV: torch.Tensor, targets: Targets) -> torch.Tensor:
    parts = []
    for start in range(0, len(targets.ids), _SLICE):
        part = targets.at(slice(start, start + _SLICE))
        scaled = logits_NV[start : start + _SLICE].float() / part.temperatures[:, None]
        parts.append(losses.token_logprobs(scaled, part.ids))
    return torch.cat(parts) if parts else torch.empty(0)


def _mismatch(logprobs: torch.Tensor, targets: Targets) -> dict[str, float]:
    """|log pi - log mu| over tokens of non-zero weight whose sampler logprob is known: the standing alarm."""
    known = ~targets.sampler_logprobs.isnan() & (targets.weights != 0)
    delta = (logprobs[known] - targets.sampler_logprobs[known]).abs()
    return {
        "logprob_delta_sum": float(delta.double().sum()),
        "logprob_delta_max": float(delta.max()) if len(delta) else 0.0,
        "logprob_delta_tokens": float(len(delta)),
    }

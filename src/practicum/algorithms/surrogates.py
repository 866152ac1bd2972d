"""The policy gradient as one detached coefficient per token, from logprobs alone: no logits, no model, no state.

Whatever form a `PolicyGradient` asks for, its loss has the gradient

    dL = - sum_t push_t d log pi(y_t)

with push_t a number, for the loss

    L = - sum_t w_t s_t u_t keep_t f(rho_t, A_t)

    f     detached: sg[min(rho, cap)] A log pi                              (CISPO, arXiv 2506.13585)
          clip:     min(min(rho, dual) A, clip(rho, 1 - low, 1 + high) A)   (PPO, arXiv 1707.06347; dual clip, arXiv
                    1912.09729; clip-higher, DAPO, arXiv 2503.14476)
    rho   token:    pi/mu or pi/pi_old
          sequence: exp(mean_t log rho_t) over the row                      (GSPO, arXiv 2507.18071)
    keep  the trust mask (`trust_mask`) and the corrections (`_corrected`)
    s     negative_scale where A < 0, else 1                                (after TOPR, arXiv 2503.14286)
    u     the truncated weight pi_old/mu, where one is asked for            (TIS; IcePop, arXiv 2510.18855)

Deviations: 1. With `clip` and a sequence ratio, advantages and weights may differ within a row; the row's push is then
their sum, spread evenly, which is the objective's own gradient. 2. A token that is dropped stays in whatever
denominator the caller put into the weights: rejection shrinks the step instead of inflating the rest.

`coefficients` finds the pushes, so that a head that never holds [N, V] logits can ask between its two passes; `anchor`
finds those of a sampled KL; `policy_gradient` is the loss as torch differentiates it. Where `settings.needs_rows` is
false a token's push depends on that token alone, and slices of a batch may be asked for one by one; else whole rows
must be given.

Legend: N token positions of R rows; pi the policy that is trained, mu the sampler, pi_old the trainer's own account of
it before the update; rho the ratio of pi to mu or pi_old. Everything that comes in is detached. All arithmetic is
float32, exponents are clamped to +-20, and what is left out is left out by `where` on the input of each risky function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from practicum.algorithms.losses import EXPONENT_LIMIT, k3
from practicum.types.training import PolicyGradient


@dataclass(frozen=True, slots=True)
class Coefficients:
    """`push: [N]` as above, the loss's `value: [N]` by token, and named sums over the positions of non-zero weight.

    `masked`: by the trust mask. `clipped`: tokens whose ratio is beyond its bound, `rejected`: dropped by a correction.
    `ratio`, `ratio_square`: of pi to mu, so ratio^2 / ratio_square is the effective sample size. `k3`: KL(mu||pi),
    sampled. `positive`, `negative`: tokens by the sign of A; `kept_positive`, `kept_negative`: those still pushed.
    """

    push: torch.Tensor
    value: torch.Tensor
    figures: Mapping[str, torch.Tensor]

    def at(self, index: torch.Tensor | slice) -> Coefficients:
        """The same for some of the tokens, without the sums."""
        return Coefficients(self.push[index], self.value[index], {})


def policy_gradient(logprobs_N: torch.Tensor, found: Coefficients) -> torch.Tensor:
    """The loss, summed: its value is `found.value`'s, its gradient - sum_t push_t d log pi(y_t)."""
    logp_N = torch.where(found.push != 0, logprobs_N.float(), 0.0)
    return found.value.sum() - (found.push * (logp_N - logp_N.detach())).sum()


@torch.no_grad()
def coefficients(
    logprobs_N: torch.Tensor,
    sampler_N: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    settings: PolicyGradient,
    *,
    rows_N: torch.Tensor | None = None,
    old_N: torch.Tensor | None = None,
) -> Coefficients:
    """What every token's log pi is pushed by, and what the loss is; see above.

    Args:
        logprobs_N: log pi; sampler_N log mu, old_N log pi_old, all at the row's temperature.
        advantages_N: A.
        weights_N: w; where it is 0 nothing else is read.
        settings: the form.
        rows_N: the row's number at each position, from 0; one row where None.
    """
    active_N = weights_N != 0
    logp_N, mu_N, advantages_N = (only(each.float(), active_N) for each in (logprobs_N, sampler_N, advantages_N))
    rows = _Rows(active_N, rows_N)
    base_N = mu_N
    if settings.against == "proximal":
        assert old_N is not None, "check the rows: a ratio against the proximal policy needs its logprobs"
        base_N = only(old_N.float(), active_N)
    drift_N = _clamped(logp_N - mu_N)
    mismatch_N = drift_N if settings.against == "sampler" else _clamped(base_N - mu_N)
    weight_N, rejected_N = _corrected(mismatch_N, drift_N, advantages_N, settings, rows)
    masked_N = ~trust_mask(logp_N, mu_N, advantages_N, above=settings.trust_above, below=settings.trust_below)
    log_ratio_N = _clamped(logp_N - base_N)
    rho_N = (rows.mean(log_ratio_N) if settings.ratio == "sequence" else log_ratio_N).exp()
    clipped_N, gain_N, push_N = _surrogate(rho_N, advantages_N, logp_N, settings)
    scale_N = weights_N * weight_N * torch.where(advantages_N < 0, settings.negative_scale, 1.0)
    scale_N = only(scale_N, active_N & ~masked_N & ~rejected_N)
    value_N, push_N = -scale_N * gain_N, scale_N * push_N
    if settings.surrogate == "clip" and settings.ratio == "sequence":
        push_N = rows.shared(push_N)
    sums = {
        "masked": masked_N,
        "clipped": clipped_N,
        "rejected": rejected_N,
        "ratio": drift_N.exp(),
        "ratio_square": (2 * drift_N).exp(),
        "k3": k3(mu_N, logp_N),
        **_signs(advantages_N, masked_N | rejected_N | (clipped_N if settings.surrogate == "clip" else False)),
    }
    figures = {name: only(values.double(), active_N).sum() for name, values in sums.items()}
    return Coefficients(only(push_N, active_N), only(value_N, active_N), figures)


@torch.no_grad()
def anchor(
    logprobs_N: torch.Tensor,
    reference_N: torch.Tensor,
    sampler_N: torch.Tensor,
    weights_N: torch.Tensor,
    settings: PolicyGradient,
) -> Coefficients:
    """The sampled KL to the reference, kl_coef sum_t w_t KL_t, token by token; none where the kind is `full`.

    With d = log pi_ref - log pi and y ~ pi, k2 = d^2 / 2 has the gradient of KL(pi||ref), k3 = e^d - d - 1 that of
    KL(ref||pi). Weighed by pi/mu for y ~ mu, the ratio differentiated with k3 and not with k2, both have that of
    KL(pi||ref): the derivative is -(pi/mu) d in either case (DeepSeek-V3.2, arXiv 2512.02556). Tokens that the policy
    gradient drops are anchored all the same.
    """
    active_N = weights_N != 0
    if settings.kl_kind == "full":
        nothing_N = torch.zeros_like(weights_N)
        return Coefficients(nothing_N, nothing_N, {})
    logp_N, reference_N, mu_N = (only(each.float(), active_N) for each in (logprobs_N, reference_N, sampler_N))
    d_N = _clamped(reference_N - logp_N)
    value_N = d_N.expm1() - d_N if settings.kl_kind == "k3" else 0.5 * d_N.square()
    push_N = d_N.expm1() if settings.kl_kind == "k3" else d_N
    if settings.kl_unbiased:
        ratio_N = _clamped(logp_N - mu_N).exp()
        value_N, push_N = ratio_N * value_N, ratio_N * d_N
    scale_N = settings.kl_coef * weights_N
    return Coefficients(only(scale_N * push_N, active_N), only(scale_N * value_N, active_N), {})


def ratio(logprobs_N: torch.Tensor, base_N: torch.Tensor) -> torch.Tensor:
    """exp(log pi - log base), detached, the exponent clamped to +-20: `[N]`.

    The base is what was recorded. Taken from a detached copy of pi itself the ratio would be 1 for ever.
    """
    return _clamped((logprobs_N.float() - base_N.float()).detach()).exp()


def trust_mask(
    logprobs_N: torch.Tensor,
    sampler_N: torch.Tensor,
    advantages_N: torch.Tensor,
    *,
    above: float | None = 0.2,
    below: float | None = 0.2,
) -> torch.Tensor:
    """Whether a token may still be pushed the way its advantage points: bool `[N]`.

        keep unless (A > 0 and pi - mu > above) or (A < 0 and pi - mu < -below)

    Probabilities, not ratios: a rare token may still grow many times over. Source: DPPO, binary total variation
    (arXiv 2602.04879).
    """
    moved_N = (logprobs_N.float().exp() - sampler_N.float().exp()).detach()
    keep_N = torch.ones_like(moved_N, dtype=torch.bool)
    if above is not None:
        keep_N &= ~((advantages_N > 0) & (moved_N > above))
    if below is not None:
        keep_N &= ~((advantages_N < 0) & (moved_N < -below))
    return keep_N


def only(values_N: torch.Tensor, active_N: torch.Tensor) -> torch.Tensor:
    """`values_N` where active, else 0, whatever stands there."""
    return torch.where(active_N, values_N, torch.zeros((), dtype=values_N.dtype, device=values_N.device))


def _surrogate(
    rho_N: torch.Tensor, advantages_N: torch.Tensor, logp_N: torch.Tensor, settings: PolicyGradient
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Whether the ratio is beyond its bound, f, and its derivative by log pi (by log rho, of a sequence): `[N]`."""
    if settings.surrogate == "detached":
        capped_N = rho_N > (torch.inf if settings.cap is None else settings.cap)
        push_N = rho_N.clamp(min=0.0, max=settings.cap) * advantages_N
        return capped_N, push_N * logp_N, push_N
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    bounded_N = rho_N.clamp(min=0.0, max=settings.dual_clip)
    gain_N = torch.minimum(bounded_N * advantages_N, rho_N.clamp(low, high) * advantages_N)
    dual = torch.inf if settings.dual_clip is None else settings.dual_clip
    clipped_N = ((advantages_N > 0) & (rho_N > high)) | ((advantages_N < 0) & ((rho_N < low) | (rho_N > dual)))
    return clipped_N, gain_N, only(rho_N * advantages_N, ~clipped_N)


def _corrected(
    mismatch_N: torch.Tensor,
    drift_N: torch.Tensor,
    advantages_N: torch.Tensor,
    settings: PolicyGradient,
    rows: _Rows,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight u, and which tokens are rejected: `[N]`.

    With r_t = pi_old/mu (pi/mu, where the ratio is to mu), over the row's tokens:

        icepop       token outside [lo, hi]             IcePop, arXiv 2510.18855
        geometric    row unless lo <= exp(mean log r) <= hi
        max_k3       row if mean(r - log r - 1) > bound
        veto         row if any r < bound
        max_drift    row if mean |log pi/mu| > bound    how far the policy is by now, whatever its version's number
        sequence_delta  row's tokens with A < 0, if mean log(mu/pi) > bound     DeepSeek-V3.2, arXiv 2512.02556
    """
    r_N = mismatch_N.exp()
    weight_N = torch.ones_like(r_N)
    if settings.tis_cap is not None:
        weight_N = r_N.clamp(max=settings.tis_cap)
    rejected_N = torch.zeros_like(r_N, dtype=torch.bool)
    if settings.icepop is not None:
        rejected_N |= (r_N < settings.icepop[0]) | (r_N > settings.icepop[1])
        if settings.against == "proximal" and settings.tis_cap is None:
            weight_N = r_N
    if settings.geometric is not None:
        mean_N = rows.mean(mismatch_N).exp()
        rejected_N |= (mean_N < settings.geometric[0]) | (mean_N > settings.geometric[1])
    if settings.max_k3 is not None:
        rejected_N |= rows.mean(mismatch_N.expm1() - mismatch_N) > settings.max_k3
    if settings.veto is not None:
        rejected_N |= rows.mean((r_N < settings.veto).float()) > 0
    if settings.max_drift is not None:
        rejected_N |= rows.mean(drift_N.abs()) > settings.max_drift
    if settings.sequence_delta is not None:
        rejected_N |= (advantages_N < 0) & (rows.mean(-drift_N) > settings.sequence_delta)
    return weight_N, rejected_N


def _signs(advantages_N: torch.Tensor, lost_N: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {"positive": advantages_N > 0, "negative": advantages_N < 0}
    return found | {f"kept_{name}": sign_N & ~lost_N for name, sign_N in found.items()}


class _Rows:
    """Means over the active positions of each row, given back at every position."""

    def __init__(self, active_N: torch.Tensor, rows_N: torch.Tensor | None) -> None:
        self._active_N = active_N
        self._rows_N = torch.zeros_like(active_N, dtype=torch.long) if rows_N is None else rows_N
        self._count = int(self._rows_N.max()) + 1 if len(self._rows_N) else 0
        self._sizes_N = self._summed(torch.ones_like(active_N, dtype=torch.float32)).clamp(min=1.0)

    def mean(self, values_N: torch.Tensor) -> torch.Tensor:
        """Mean over the row: `[N]`."""
        return self._summed(values_N) / self._sizes_N

    def shared(self, values_N: torch.Tensor) -> torch.Tensor:
        """The row's sum in equal parts: `[N]`."""
        return only(self.mean(values_N), self._active_N)

    def _summed(self, values_N: torch.Tensor) -> torch.Tensor:
        sums_R = torch.zeros(self._count, dtype=torch.float32, device=values_N.device)
        sums_R = sums_R.index_add(0, self._rows_N, only(values_N.float(), self._active_N))
        return sums_R[self._rows_N]


def _clamped(log_ratio_N: torch.Tensor) -> torch.Tensor:
    return log_ratio_N.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)

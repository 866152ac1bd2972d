"""Losses as pure functions of tensors: logits and logprobs in, sums out. No model, no batch, no state.

The policy gradient, which needs no logits, stands in `surrogates.py`.

Legend: N token positions, V vocabulary, K kept entries of it. pi the policy that is trained, mu the one that sampled,
q the teacher. Every loss is a sum over positions; normalisation is the caller's and sits in `weights_N`. Ratios,
advantages, teachers and weights are detached: they carry no gradient. All arithmetic is float32; exponents are clamped
to +-20; a position is left out by `where` on the input of each risky function, never by multiplying with 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

EXPONENT_LIMIT = 20.0
_LOG_FULL = -1e-7
_REST = 1e-4


def token_logprobs(logits_NV: torch.Tensor, ids_N: torch.Tensor) -> torch.Tensor:
    """log pi(y): `[N]`, by log-softmax over the whole vocabulary."""
    return torch.log_softmax(logits_NV.float(), dim=-1).gather(1, ids_N[:, None]).squeeze(1)


def entropy(logits_NV: torch.Tensor) -> torch.Tensor:
    """- sum_v p log p: `[N]`, nats."""
    logp_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    return -_expect(logp_NV.exp(), logp_NV)


def cross_entropy(logprobs_N: torch.Tensor, weights_N: torch.Tensor) -> torch.Tensor:
    """- sum_t w_t log pi(y_t). A position of weight 0 contributes exactly nothing, whatever its logprob."""
    return -(weights_N.detach() * _only(logprobs_N, weights_N != 0)).sum()


def k1(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """log pi - log ref: `[N]`. Unbiased for KL(pi||ref) under y ~ pi; as a loss its expected gradient is zero."""
    return logprobs_N - reference_N


def k2(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """(log pi - log ref)^2 / 2: `[N]`. As a loss on y ~ pi its expected gradient is that of KL(pi||ref)."""
    return 0.5 * (logprobs_N - reference_N).square()


def k3(logprobs_N: torch.Tensor, reference_N: torch.Tensor) -> torch.Tensor:
    """exp(d) - d - 1 with d = log ref - log pi: `[N]`, never negative, unbiased for KL(pi||ref) under y ~ pi.

    As a loss on y ~ pi its expected gradient is that of the FORWARD KL(ref||pi); use `k2` for a reverse-KL anchor.
    """
    difference_N = (reference_N - logprobs_N).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    return difference_N.expm1() - difference_N


def full_kl(logits_p_NV: torch.Tensor, logits_q_NV: torch.Tensor) -> torch.Tensor:
    """KL(p||q) over the whole vocabulary, exact: `[N]`, nats."""
    logp_NV = torch.log_softmax(logits_p_NV.float(), dim=-1)
    logq_NV = torch.log_softmax(logits_q_NV.float(), dim=-1)
    return _expect(logp_NV.exp(), logp_NV - logq_NV)


def divergence(
    student_logits_NV: torch.Tensor,
    teacher_logits_NV: torch.Tensor,
    *,
    kind: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl",
    alpha: float = 0.5,
    top_k: int = 0,
    tail: bool = True,
) -> torch.Tensor:
    """Divergence between student pi and teacher q at each position: `[N]`, nats. The teacher is detached.

        reverse_kl: KL(pi||q)      forward_kl: KL(q||pi)
        jsd:        (1-alpha) KL(pi||M) + alpha KL(q||M),   M = (1-alpha) pi + alpha q

    jsd divided by alpha tends to KL(q||pi) as alpha -> 0, divided by 1-alpha to KL(pi||q) as alpha -> 1; at .5 it is
    symmetric. With `top_k` both are restricted to the student's k most probable entries, by their true probabilities,
    and one bucket holds the rest. `tail=False` drops the bucket instead, which is biased: its gradient does not vanish
    at pi = q; it stands here so that a test can show it.
    Source: self-distillation with privileged context (SDPO, arXiv 2601.20802); generalised JSD (arXiv 2306.13649).
    """
    logp_NK = torch.log_softmax(student_logits_NV.float(), dim=-1)
    logq_NK = torch.log_softmax(teacher_logits_NV.detach().float(), dim=-1)
    if 0 < top_k < logp_NK.shape[1]:
        ids_NK = logp_NK.detach().topk(top_k, dim=-1).indices
        logp_NK, logq_NK = logp_NK.gather(1, ids_NK), logq_NK.gather(1, ids_NK)
        if tail:
            logp_NK, logq_NK = _with_tail(logp_NK), _with_tail(logq_NK)
    if kind == "reverse_kl":
        return _expect(logp_NK.exp(), logp_NK - logq_NK)
    if kind == "forward_kl":
        return _expect(logq_NK.exp(), logq_NK - logp_NK)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}; jsd needs 0 < alpha < 1 (its ends are forward_kl and reverse_kl)")
    log_alpha, log_rest = torch.log(torch.tensor([alpha, 1 - alpha])).unbind()
    logm_NK = torch.logaddexp(logp_NK + log_rest, logq_NK + log_alpha)
    to_student_N = _expect(logp_NK.exp(), logp_NK - logm_NK)
    to_teacher_N = _expect(logq_NK.exp(), logq_NK - logm_NK)
    return (1 - alpha) * to_student_N + alpha * to_teacher_N


def clip_divergence(divergence_N: torch.Tensor, clip: float | None) -> torch.Tensor:
    """min(D, clip): `[N]`, with the gradient scaled by clip/D beyond it instead of cut off.

    A few tokens of style carry most of the divergence; bounded, they neither dominate nor lose their direction.
    Deviation from OPSD (arXiv 2601.18734), which clips single vocabulary entries: here a whole token's divergence.
    """
    if clip is None:
        return divergence_N
    return divergence_N * (clip / divergence_N.detach().clamp(min=clip))


def distill(
    student_logits_NV: torch.Tensor,
    teacher_logits_NV: torch.Tensor,
    weights_N: torch.Tensor,
    *,
    kind: Literal["reverse_kl", "forward_kl", "jsd"] = "reverse_kl",
    alpha: float = 0.5,
    top_k: int = 0,
    clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """sum_t w_t min(D(pi(.|x, y<t) || q(.|teacher prompt, y<t)), clip), and the divergences `[N]`, unclipped, detached.

    Student and teacher logits stand at the same completion tokens under different prompts. Rows of weight 0 should be
    left out by the caller; here they contribute exactly nothing.
    """
    divergence_N = divergence(student_logits_NV, teacher_logits_NV, kind=kind, alpha=alpha, top_k=top_k)
    clipped_N = clip_divergence(divergence_N, clip)
    loss = (weights_N.detach() * _only(clipped_N, weights_N != 0)).sum()
    return loss, divergence_N.detach()


def contrasted(
    untold_NV: torch.Tensor,
    told_NV: torch.Tensor,
    other_NV: torch.Tensor,
    contrast: float,
    *,
    plausibility: float = 0.0,
) -> torch.Tensor:
    """Logits of a teacher that takes from its reading only what was said: untold + contrast (told - other), `[N, V]`.

    All are one policy at the same completion tokens: without a remark, with it, and with another one that asks for
    nothing. What being spoken to changes by itself cancels out. By Bayes' rule, told - other is log p(this remark |
    answer) - log p(the other | answer), so the target is the policy's own distribution weighed by how likely the
    remark is beside it, at power `contrast`. With other = untold and contrast 1 it is told. Source: the contrastive
    form of classifier-free guidance for language models (arXiv 2306.17806).

    A token that the told policy gives less than `plausibility` times its likeliest one is lowered where told < other,
    but never raised: a rare token's ratio is noise, and `contrast` takes noise to a power. Source: the plausibility
    constraint of contrastive decoding (arXiv 2210.15097), which rules such tokens out instead.
    """
    if not plausibility:
        return untold_NV + contrast * (told_NV - other_NV)
    told_NV, other_NV = torch.log_softmax(told_NV, dim=-1), torch.log_softmax(other_NV, dim=-1)
    change_NV = contrast * (told_NV - other_NV)
    floor_N1 = told_NV.amax(dim=-1, keepdim=True) + math.log(plausibility)
    return untold_NV + torch.where(told_NV >= floor_N1, change_NV, change_NV.clamp(max=0.0))


def redirected(logits_NV: torch.Tensor, stop_ids: Sequence[int], first_id: int) -> torch.Tensor:
    """Logits of a policy that says `first_id` where this one would have ended: `[N, V]`, normalised.

    The probability of `stop_ids` goes to `first_id`, but for a rest of `_REST` that keeps the reverse KL finite.
    """
    logq_NV = torch.log_softmax(logits_NV.float(), dim=-1)
    stops = [stop for stop in stop_ids if stop != first_id]
    ended_NS = logq_NV[:, stops]
    gained_NS1 = torch.cat([logq_NV[:, first_id, None], ended_NS + math.log1p(-_REST)], dim=-1)
    logq_NV[:, first_id] = torch.logsumexp(gained_NS1, dim=-1)
    logq_NV[:, stops] = ended_NS + math.log(_REST)
    return logq_NV


def sampled_advantage(
    logprobs_N: torch.Tensor, teacher_logprobs_N: torch.Tensor, *, clip: float | None = None
) -> torch.Tensor:
    """sg[log q(y_t) - log pi(y_t)], clipped to +-clip: `[N]`.

    As the advantage of a policy gradient on y ~ pi it gives the gradient of KL(pi||q) in expectation, from the sampled
    token alone.
    """
    advantage_N = (teacher_logprobs_N - logprobs_N).detach()
    return advantage_N if clip is None else advantage_N.clamp(-clip, clip)


def _expect(probabilities_NK: torch.Tensor, values_NK: torch.Tensor) -> torch.Tensor:
    """sum_k p_k v_k with 0 * inf = 0."""
    possible_NK = probabilities_NK > 0
    return (probabilities_NK * torch.where(possible_NK, values_NK, 0.0)).sum(-1)


def _with_tail(logp_NK: torch.Tensor) -> torch.Tensor:
    """Append log(1 - sum of the kept probabilities): `[N, K + 1]`."""
    kept_N1 = torch.logsumexp(logp_NK, dim=-1, keepdim=True).clamp(max=_LOG_FULL)
    return torch.cat([logp_NK, torch.log(-torch.expm1(kept_N1))], dim=-1)


def _only(values_N: torch.Tensor, active_N: torch.Tensor) -> torch.Tensor:
    return torch.where(active_N, values_N, torch.zeros((), dtype=values_N.dtype))

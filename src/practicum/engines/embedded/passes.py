"""One micro-batch through the policy and the frozen policies its loss needs; gradients accumulate in the parameters.

Frozen policies give hidden states for all of it at once, and logits for as many tokens as the loss looks at together.

Legend: N completion tokens of the micro-batch, n some of them, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from practicum.algorithms import losses
from practicum.engines.embedded.batches import Under, pairs_of, targets_of
from practicum.engines.embedded.layout import Layout, layout_of
from practicum.engines.embedded.objectives import Frozen, Objective, evaluate
from practicum.engines.embedded.policy import Policy, Sibling
from practicum.engines.embedded.settings import TrainerSettings
from practicum.types.training import Datum, LossName, PolicyGradient


def micro_batch(
    policy: Policy,
    rows: Sequence[Datum],
    loss: LossName,
    settings: TrainerSettings,
    *,
    policy_gradient: PolicyGradient,
    device: torch.device,
    measures_kl: bool,
) -> Objective:
    """Loss, figures and logprobs of the rows; adds the gradient of the loss to the policy's parameters."""
    frozen = _FrozenPolicies(policy, rows, settings, device)
    targets = targets_of(rows).to(device)
    layout = frozen.layout("own")
    if not len(layout):
        return evaluate(loss, torch.empty(0, 1, device=device), policy.head, targets, settings)
    anchored = loss == "policy_gradient" and policy_gradient.kl_coef > 0
    teacher = frozen.teacher() if loss == "distill" else None
    reference = frozen.under("own", "reference") if measures_kl or anchored else None
    trains = bool((targets.weights != 0).any())
    with torch.set_grad_enabled(trains):
        hidden_NE = policy.hidden(layout, recompute=len(layout) > settings.checkpoint_over_tokens)
    objective = evaluate(
        loss,
        hidden_NE,
        policy.head,
        targets,
        settings,
        policy_gradient=policy_gradient,
        teacher=teacher,
        reference=reference,
    )
    if trains:
        torch.autograd.backward(hidden_NE, objective.gradient)
    objective.gradient = torch.empty(0)
    return objective


class _FrozenPolicies:
    """Logits of frozen policies over one micro-batch; no forward is made twice."""

    def __init__(self, policy: Policy, rows: Sequence[Datum], settings: TrainerSettings, device: torch.device) -> None:
        self._policy, self._rows, self._settings, self._device = policy, rows, settings.distill, device
        self._layouts: dict[Under, Layout] = {}
        self._made: dict[tuple[Under, Sibling], Frozen] = {}

    def layout(self, under: Under) -> Layout:
        """The rows under some of their prompts."""
        if under not in self._layouts:
            pairs = pairs_of(self._rows, under)
            self._layouts[under] = layout_of(pairs, shared=self._policy.trees).to(self._device)
        return self._layouts[under]

    def under(self, under: Under, sibling: Sibling) -> Frozen:
        """A frozen policy's logits under some of the rows' prompts."""
        against = self._rows[0].against
        if sibling != against and (under, against) in self._made and self._policy.same(sibling, against):
            sibling = against
        if (under, sibling) not in self._made:
            hidden_NE = self._policy.hidden(self.layout(under), sibling)
            self._made[under, sibling] = partial(_logits, self._policy, sibling, hidden_NE)
        return self._made[under, sibling]

    def teacher(self) -> Frozen:
        """The logits that the policy is drawn to."""
        rows, settings, sibling = self._rows, self._settings, self._rows[0].against
        apart = any(row.contrast_prompt_ids for row in rows)
        if all(row.teacher_prompt_ids == row.prompt_ids for row in rows) and not apart:
            return self._redirected(self.under("own", sibling))
        told = self.under("teacher", sibling)
        if settings.contrast == 1 and not apart:
            return self._redirected(told)
        untold = self.under("own", sibling)
        other = self.under("contrast", sibling) if apart else untold

        def contrasted(index: torch.Tensor) -> torch.Tensor:
            return losses.contrasted(
                untold(index), told(index), other(index), settings.contrast, plausibility=settings.plausibility
            )

        return self._redirected(contrasted)

    def _redirected(self, target: Frozen) -> Frozen:
        """The target with the rows' redirections, where there are any."""
        if all(row.redirect is None for row in self._rows):
            return target
        lengths = torch.tensor([len(row.completion_ids) for row in self._rows], device=self._device)
        row_N = torch.arange(len(self._rows), device=self._device).repeat_interleave(lengths)

        def redirected(index: torch.Tensor) -> torch.Tensor:
            target_nV = target(index).clone()
            for number in torch.unique(row_N[index]).tolist():
                redirect = self._rows[number].redirect
                if redirect is not None:
                    own_n = row_N[index] == number
                    target_nV[own_n] = losses.redirected(target_nV[own_n], *redirect)
            return target_nV

        return redirected


@torch.no_grad()
def _logits(policy: Policy, sibling: Sibling, hidden_NE: torch.Tensor, index_n: torch.Tensor) -> torch.Tensor:
    return policy.head(hidden_NE[index_n], sibling).float()

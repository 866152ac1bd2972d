"""Every form of the policy gradient through the trainer: splits, masks, keys, anchors.

Pins: how rows are split, ordered and packed changes nothing, also where a weight is its whole row's (L1); all masked is
0 (L2); what was not sampled has no influence (L8); a key belongs to one form (L10).
"""

from dataclasses import replace

import pytest
import torch
from embedded_training import make_rows, make_trainer, warm

from practicum.engines.embedded.settings import DistillSettings
from practicum.errors import Conflict, RequestError
from practicum.types.training import PolicyGradient

FREE = {"trust_above": None, "trust_below": None}
FORMS = {
    "default": PolicyGradient(),
    "clip": PolicyGradient(surrogate="clip", dual_clip=3.0, **FREE),
    "sequence": PolicyGradient(surrogate="clip", ratio="sequence", clip_low=0.1, clip_high=0.1, **FREE),
    "rejecting": PolicyGradient(geometric=(0.7, 1.4), max_k3=0.2, veto=0.35, max_drift=0.6, **FREE),
    "corrected": PolicyGradient(surrogate="clip", against="proximal", tis_cap=2.0, icepop=(0.5, 1.7), **FREE),
    "k2": PolicyGradient(kl_coef=0.1, kl_kind="k2"),
    "k3 weighed": PolicyGradient(kl_coef=0.1, kl_kind="k3", kl_unbiased=True),
    "full": PolicyGradient(kl_coef=0.1),
}


def rows_of(model, count=6):
    """Rows whose sampler, and the policy before the update, are a little off what the trainer finds."""
    rows = make_rows(count)
    look = make_trainer_on(model)
    known = look.forward_backward(rows, "cross_entropy", key="look").logprobs
    generator = torch.Generator().manual_seed(1)

    def near(row, spread):
        noise = spread * torch.randn(len(row.completion_ids), generator=generator)
        return tuple(value + float(each) for value, each in zip(known[row.row_id], noise, strict=True))

    return [replace(row, logprobs=near(row, 0.5), old_logprobs=near(row, 0.1)) for row in rows]


def make_trainer_on(model, **settings):
    trainer = make_trainer(model, **settings)
    warm(trainer)
    return trainer


def gradients(trainer):
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in trainer.policy.parameters().items()
    }


def run(model, rows, settings, **trainer_settings):
    trainer = make_trainer_on(model, **trainer_settings)
    result = trainer.forward_backward(rows, "policy_gradient", key="a", policy_gradient=settings)
    return result, gradients(trainer)


@pytest.mark.parametrize("form", FORMS)
def test_l1_split_order_and_packing_change_nothing_in_any_form(form, model):
    rows = rows_of(model)
    whole, expected = run(model, rows, FORMS[form], micro_batch_tokens=10_000)
    assert max(float(each.abs().max()) for each in expected.values()) > 1e-4
    for budget, order in ((1, rows), (100, rows[::-1])):
        result, gradient = run(model, order, FORMS[form], micro_batch_tokens=budget)
        assert result.loss_sum == pytest.approx(whole.loss_sum, rel=1e-4, abs=1e-5)
        assert result.sums == pytest.approx(whole.sums, rel=1e-4, abs=1e-4)
        for name, value in expected.items():
            torch.testing.assert_close(gradient[name], value, atol=1e-5, rtol=1e-4)
    if form == "rejecting":
        assert 0 < whole.sums["rejected_sum"] < whole.tokens


@pytest.mark.parametrize("form", FORMS)
def test_l2_all_masked_is_zero_in_any_form(form, model):
    rows = [replace(row, weights=(0.0,) * len(row.completion_ids)) for row in rows_of(model, 3)]
    result, gradient = run(model, rows, FORMS[form])
    assert result.loss_sum == 0 and result.tokens == 0
    assert all(each.abs().max() == 0 for each in gradient.values())


@pytest.mark.parametrize("form", FORMS)
def test_l8_what_was_not_sampled_has_no_influence_in_any_form(form, model):
    found = []
    for last, logprob in ((3, -2.0), (200, None)):
        row = replace(
            make_rows(1)[0],
            completion_ids=(10, 20, 30, last),
            weights=(1.0, 1.0, 1.0, 0.0),
            advantages=(1.0, 1.0, 1.0, -9.0),
            logprobs=(-5.0, -5.5, -6.0, logprob),
            old_logprobs=(-5.1, -5.6, -5.9, 0.0 if logprob is None else -7.0),
        )
        found.append(run(model, [row], FORMS[form]))
    assert found[0][0].loss_sum == found[1][0].loss_sum
    for name, value in found[0][1].items():
        assert torch.equal(value, found[1][1][name])


def test_l10_a_key_belongs_to_one_form(model):
    trainer, rows = make_trainer_on(model), rows_of(model, 2)
    trainer.forward_backward(rows, "policy_gradient", key="a", policy_gradient=FORMS["clip"])
    with pytest.raises(Conflict, match="another call"):
        trainer.forward_backward(rows, "policy_gradient", key="a", policy_gradient=FORMS["sequence"])
    with pytest.raises(Conflict, match="another call"):
        trainer.forward_backward([replace(rows[0], old_logprobs=None), rows[1]], "policy_gradient", key="a",
                                 policy_gradient=FORMS["clip"])  # fmt: skip


def test_a_proximal_ratio_without_its_logprobs_is_refused(model):
    trainer = make_trainer_on(model)
    before = gradients(trainer)
    with pytest.raises(RequestError, match="needs old_logprobs"):
        trainer.forward_backward(make_rows(1), "policy_gradient", key="a", policy_gradient=FORMS["corrected"])
    assert all(torch.equal(value, before[name]) for name, value in gradients(trainer).items())


def test_the_exact_anchor_is_the_trainers_own(model):
    rows = rows_of(model)
    one, own = run(model, rows, FORMS["full"])
    two, given = run(model, rows, PolicyGradient(), distill=DistillSettings(kl_coef=0.1))
    assert one.loss_sum == pytest.approx(two.loss_sum, rel=1e-6)
    for name, value in own.items():
        torch.testing.assert_close(given[name], value)


@pytest.mark.parametrize("form", ["k2", "k3 weighed", "full"])
def test_r9_at_the_reference_itself_an_anchor_pulls_nowhere_and_off_it_back(form, model):
    """Rows without an advantage, on which only the anchor acts: every step brings the policy back on their tokens."""
    settings = replace(FORMS[form], kl_coef=1.0)
    trainer = make_trainer(model)
    rows = [replace(row, advantages=(0.0,) * len(row.completion_ids)) for row in rows_of(model)]
    trainer.forward_backward(rows, "policy_gradient", key="look", policy_gradient=settings)
    assert all(each.abs().max() < 1e-5 for each in gradients(trainer).values())
    trainer = make_trainer_on(model)
    found = []
    for step in range(8):
        result = trainer.forward_backward(rows, "policy_gradient", key=f"f{step}", policy_gradient=settings)
        found.append(result.loss_sum)
        trainer.optim_step(learning_rate=3e-3, key=f"s{step}")
    assert found[-1] < 0.8 * found[0]

"""The policy gradient's coefficients against hand-computed numbers, and against what torch differentiates.

Pins: a plain policy gradient on policy (H5); rejection keeps the denominator (H6); the push of a negative fades with
its probability (H10); nothing but log pi carries a gradient (H4); the anchors' gradients, sampled and weighed (H0); L1,
L2, L5 to L8 of the loss cases, each in a test of its name.
"""

import math

import pytest
import torch

from practicum.algorithms import losses
from practicum.algorithms.surrogates import anchor, coefficients, policy_gradient, ratio, trust_mask
from practicum.types.training import PolicyGradient

FREE = {"trust_above": None, "trust_below": None}
CLIP = PolicyGradient(surrogate="clip", clip_low=0.2, clip_high=0.28, **FREE)


def log(*probabilities: float) -> torch.Tensor:
    return torch.log(torch.tensor(probabilities))


def run(logp, mu, advantages, settings=PolicyGradient(), weights=None, rows=None, old=None, reference=None):
    """The loss, its gradient by log pi, and the figures as numbers."""
    leaf = logp.clone().requires_grad_()
    weights = torch.ones(len(leaf)) if weights is None else weights
    rows = None if rows is None else torch.tensor(rows)
    found = coefficients(leaf, mu, torch.as_tensor(advantages), weights, settings, rows_N=rows, old_N=old)
    loss = policy_gradient(leaf, found)
    if reference is not None:
        loss = loss + policy_gradient(leaf, anchor(leaf, reference, mu, weights, settings))
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.item(), gradient, {name: value.item() for name, value in found.figures.items()}


def test_on_policy_every_form_is_the_plain_policy_gradient():
    logp = torch.tensor([-0.5, -1.5, -3.0])
    advantage, weights = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.2, 0.3, 0.5])
    for settings in (PolicyGradient(), CLIP, PolicyGradient(against="proximal", tis_cap=2.0)):
        _, gradient, figures = run(logp, logp, advantage, settings, weights, old=logp)
        torch.testing.assert_close(gradient, -(weights * advantage))
        assert figures["ratio"] == pytest.approx(3.0) == figures["ratio_square"]
        assert figures["masked"] == figures["clipped"] == figures["rejected"] == figures["k3"] == 0
        assert (figures["kept_positive"], figures["kept_negative"]) == (2, 1)
    assert run(logp, logp, advantage, weights=weights)[0] == pytest.approx(-(0.2 * -0.5 + 0.3 * 3.0 + 0.25 * -3.0))


def test_detached_cap_and_negative_scale_by_hand():
    pi, mu = log(0.30, 0.06, 0.10), log(0.15, 0.01, 0.20)
    _, gradient, figures = run(pi, mu, [1.0, 1.0, -1.0], PolicyGradient(cap=2.0, negative_scale=0.5))
    # Ratios 2, 6 (capped to 2) and 0.5; the negative is halved.
    torch.testing.assert_close(gradient, torch.tensor([-2.0, -2.0, 0.25]))
    assert figures["clipped"] == 1 and figures["kept_positive"] == 2
    _, gradient, _ = run(pi, mu, [1.0, 1.0, -1.0], PolicyGradient(cap=None))
    torch.testing.assert_close(gradient, torch.tensor([-2.0, -6.0, 0.5]))


def test_clip_by_hand():
    rho = torch.tensor([1.1, 1.4, 0.5, 1.1, 1.4, 0.5])
    advantage = torch.tensor([2.0, 2.0, 2.0, -2.0, -2.0, -2.0])
    loss, gradient, figures = run(log(0.1) + rho.log(), log(0.1).expand(6), advantage, CLIP)
    # Up too far, and down too far: no gradient. Everything else: -rho A.
    torch.testing.assert_close(gradient, torch.tensor([-2.2, 0.0, -1.0, 2.2, 2.8, 0.0]))
    assert loss == pytest.approx(-2.2 - 2.56 - 1.0 + 2.2 + 2.8 + 1.6, rel=1e-5)
    assert figures["clipped"] == 2 and (figures["kept_positive"], figures["kept_negative"]) == (2, 2)


def test_dual_clip_bounds_what_a_negative_costs():
    settings = PolicyGradient(surrogate="clip", dual_clip=3.0, **FREE)
    loss, gradient, figures = run(log(0.4, 0.4), log(0.1, 0.2), [-1.0, -1.0], settings)
    assert gradient.tolist() == pytest.approx([0.0, 2.0]) and loss == pytest.approx(3.0 + 2.0)
    assert figures["clipped"] == 1
    with pytest.raises(ValueError, match="above 1"):
        PolicyGradient(dual_clip=1.1)


@pytest.mark.parametrize("dual_clip", [None, 1.6])
def test_the_coefficients_are_what_torch_makes_of_the_written_formula(dual_clip):
    generator = torch.Generator().manual_seed(0)
    logp, mu = (-3 * torch.rand(200, generator=generator) for _ in range(2))
    advantage, weights = torch.randn(200, generator=generator), torch.rand(200, generator=generator)
    settings = PolicyGradient(surrogate="clip", clip_low=0.1, clip_high=0.3, dual_clip=dual_clip, **FREE)
    rows = [index // 20 for index in range(200)]
    for form in ("token", "sequence"):
        leaf = logp.clone().requires_grad_()
        change = leaf - mu
        if form == "sequence":
            change = change.reshape(10, 20).mean(1).repeat_interleave(20)
        rho = change.exp()
        bounded = rho if dual_clip is None else rho.clamp(max=dual_clip)
        written = -(weights * torch.minimum(bounded * advantage, rho.clamp(0.9, 1.3) * advantage)).sum()
        (expected,) = torch.autograd.grad(written, leaf)
        loss, gradient, _ = run(
            logp, mu, advantage, PolicyGradient(**{**_fields(settings), "ratio": form}), weights, rows
        )
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
        assert loss == pytest.approx(written.item(), rel=1e-4)


def _fields(settings):
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def test_a_sequence_ratio_is_the_geometric_mean_of_its_trained_tokens():
    pi, mu = log(0.2, 0.4, 0.9, 0.1), log(0.1, 0.1, 0.1, 0.1)
    settings = PolicyGradient(surrogate="clip", ratio="sequence", clip_high=5.0, **FREE)
    weights = torch.tensor([0.5, 0.5, 0.0, 1.0])
    _, gradient, _ = run(pi, mu, [1.0, 1.0, 1.0, -1.0], settings, weights, rows=[0, 0, 0, 1])
    s = math.sqrt(2 * 4)
    torch.testing.assert_close(gradient, torch.tensor([-s / 2, -s / 2, 0.0, 1.0]))


def test_trust_mask_by_hand():
    mu, pi = log(0.3, 0.3, 0.6, 0.6, 0.3), log(0.51, 0.49, 0.39, 0.41, 0.9)
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    # Up by more than .2 with A > 0, down by more than .2 with A < 0: done. Up with A < 0: still to be pushed down.
    assert trust_mask(pi, mu, advantage).tolist() == [False, True, False, True, True]
    assert trust_mask(pi, mu, advantage, above=0.3, below=0.1).tolist() == [True, True, False, False, True]
    assert trust_mask(pi, mu, advantage, above=None, below=0.1).tolist() == [True, True, False, False, True]


def test_a_rejected_token_does_not_change_the_others():
    _, gradient, figures = run(log(0.9, 0.3), log(0.3, 0.3), [1.0, 1.0], weights=torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(gradient, torch.tensor([0.0, -0.5]))
    assert figures["masked"] == 1 and figures["kept_positive"] == 1


def test_token_tis_weighs_the_clip_by_old_over_mu():
    pi, old, mu = log(0.33, 0.33), log(0.30, 0.30), log(0.20, 0.10)
    settings = PolicyGradient(surrogate="clip", against="proximal", tis_cap=2.0, **FREE)
    _, gradient, _ = run(pi, mu, [1.0, -1.0], settings, old=old)
    # rho = pi/old = 1.1 on both, old/mu = 1.5 and 3, of which 2 is left.
    torch.testing.assert_close(gradient, torch.tensor([-1.1 * 1.5, 1.1 * 2.0]))
    with pytest.raises(ValueError, match="bounds pi/mu already"):
        PolicyGradient(tis_cap=2.0)


def test_icepop_drops_tokens_outside_and_weighs_those_inside():
    pi, mu = log(0.3, 0.3, 0.3), log(0.2, 0.9, 0.05)
    settings = PolicyGradient(surrogate="clip", against="proximal", icepop=(0.5, 5.0), **FREE)
    _, gradient, figures = run(pi, mu, [1.0, 1.0, 1.0], settings, old=pi)
    torch.testing.assert_close(gradient, torch.tensor([-1.5, 0.0, 0.0]))
    assert figures["rejected"] == 2
    # With the ratio against mu, which is in rho already, it is a mask.
    _, gradient, _ = run(pi, mu, [1.0, 1.0, 1.0], PolicyGradient(icepop=(0.5, 5.0), **FREE))
    torch.testing.assert_close(gradient, torch.tensor([-1.5, 0.0, 0.0]))


# Two rows of two tokens under mu = .5 each; what the trainer makes of them.
@pytest.mark.parametrize(
    ("settings", "pi", "rejected"),
    [
        ({"geometric": (0.9, 1.1)}, (0.6, 0.5 / 1.2, 0.6, 0.6), [False, True]),
        ({"max_k3": 0.01}, (0.5, 0.55, 0.6, 0.6), [False, True]),
        ({"veto": 1e-4}, (0.9, 0.1, 0.5, 0.4e-4), [False, True]),
        ({"max_drift": 0.2}, (0.5, 0.6, 0.6, 0.4), [False, True]),
    ],
)
def test_rows_are_rejected_whole(settings, pi, rejected):
    _, gradient, figures = run(
        log(*pi), log(0.5, 0.5, 0.5, 0.5), [1.0] * 4, PolicyGradient(**settings, **FREE), rows=[0, 0, 1, 1]
    )
    assert [bool((part == 0).all()) for part in gradient.reshape(2, 2)] == rejected
    assert [bool((part == 0).any()) for part in gradient.reshape(2, 2)] == rejected
    assert figures["rejected"] == 2


def test_the_k3_that_rejects_is_the_one_of_what_was_sampled():
    """mean(r - log r - 1) at r = 1.2 is .0177: just inside .018, outside .017."""
    assert 1.2 - math.log(1.2) - 1 == pytest.approx(0.01768, abs=1e-5)
    for bound, kept in ((0.018, True), (0.017, False)):
        _, gradient, _ = run(log(0.6, 0.6), log(0.5, 0.5), [1.0, 1.0], PolicyGradient(max_k3=bound, **FREE))
        assert bool((gradient != 0).all()) is kept


def test_stale_negatives_are_left_alone_and_stale_positives_are_not():
    pi, mu = log(0.1, 0.1, 0.1, 0.1), log(0.2, 0.2, 0.1, 0.1)
    settings = PolicyGradient(sequence_delta=0.5, **FREE)
    _, gradient, figures = run(pi, mu, [-1.0, -1.0, -1.0, -1.0], settings, rows=[0, 0, 1, 1])
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert figures["rejected"] == 2 and figures["kept_negative"] == 2
    _, gradient, _ = run(pi, mu, [1.0, 1.0, -1.0, -1.0], settings, rows=[0, 0, 1, 1])
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -0.5, 1.0, 1.0]))


def test_the_push_of_a_negative_fades_as_it_becomes_improbable():
    """H10: sg[min(pi/mu, cap)] bounds what a negative can do; without the ratio it never lets go."""
    mu = log(0.2)
    found = [run(log(p), mu, [-1.0], PolicyGradient(**FREE))[1].item() for p in (0.2, 1e-2, 1e-4, 1e-6)]
    assert found == pytest.approx([1.0, 5e-2, 5e-4, 5e-6], rel=1e-4)
    plain = torch.tensor([-10.0], requires_grad=True)
    losses.cross_entropy(plain, torch.tensor([-1.0])).backward()
    assert plain.grad is not None and plain.grad.item() == 1.0


def _expected(logits, reference, settings, sampler=None):
    """The gradient on the logits of the anchor, averaged over y ~ sampler (the policy itself if None)."""
    leaf = logits.clone().requires_grad_()
    logp = torch.log_softmax(leaf, -1)
    mu = logp.detach() if sampler is None else torch.log_softmax(sampler, -1)
    found = anchor(logp, torch.log_softmax(reference, -1), mu, mu.exp(), settings)
    return torch.autograd.grad(policy_gradient(logp, found), leaf)[0]


def test_the_anchors_have_the_gradients_they_are_named_for():
    """H0: k2 pulls by KL(pi||ref), k3 by KL(ref||pi), and both by KL(pi||ref) where pi/mu weighs them."""
    torch.manual_seed(0)
    logits, reference, sampler = (torch.randn(6) for _ in range(3))
    leaf = logits.clone().requires_grad_()
    one, two = losses.full_kl(leaf[None], reference[None]), losses.full_kl(reference[None], leaf[None])
    (reverse,), (forward,) = (torch.autograd.grad(each.sum(), leaf) for each in (one, two))
    anchor = {"kl_coef": 1.0, **FREE}
    torch.testing.assert_close(_expected(logits, reference, PolicyGradient(kl_kind="k2", **anchor)), reverse)
    torch.testing.assert_close(_expected(logits, reference, PolicyGradient(kl_kind="k3", **anchor)), forward)
    for kind in ("k2", "k3"):
        weighed = PolicyGradient(kl_kind=kind, kl_unbiased=True, **anchor)
        torch.testing.assert_close(_expected(logits, reference, weighed, sampler), reverse, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="no gradient in expectation"):
        PolicyGradient(kl_kind="k1")
    with pytest.raises(ValueError, match="exact"):
        PolicyGradient(kl_unbiased=True)


def test_the_anchors_value_is_reported():
    loss, gradient, _ = run(log(0.2), log(0.2), [0.0], PolicyGradient(kl_coef=2.0, kl_kind="k3"), reference=log(0.1))
    assert loss == pytest.approx(2 * (0.5 - math.log(0.5) - 1), rel=1e-5)
    assert gradient.item() == pytest.approx(2 * 0.5, rel=1e-5)


def test_nothing_but_the_policys_logprobs_carries_a_gradient():
    logp, mu, advantage, weights, old, reference = (torch.full((2,), -1.0, requires_grad=True) for _ in range(6))
    settings = PolicyGradient(
        against="proximal", tis_cap=2.0, icepop=(0.5, 2.0), geometric=(0.9, 1.1), kl_coef=0.1, kl_kind="k3",
        kl_unbiased=True,
    )  # fmt: skip
    for found in (
        coefficients(logp, mu, advantage, weights, settings, old_N=old),
        anchor(logp, reference, mu, weights, settings),
    ):
        assert not found.push.requires_grad and not found.value.requires_grad
        policy_gradient(logp, found).backward()
    assert logp.grad is not None
    assert all(each.grad is None for each in (mu, advantage, weights, old, reference))


def test_l1_a_token_level_loss_does_not_depend_on_the_split():
    generator = torch.Generator().manual_seed(1)
    logp, mu = (-2 * torch.rand(50, generator=generator) for _ in range(2))
    advantage, weights = torch.randn(50, generator=generator), torch.rand(50, generator=generator)
    for settings in (PolicyGradient(icepop=(0.5, 2.0)), CLIP):
        assert not settings.needs_rows
        whole = coefficients(logp, mu, advantage, weights, settings)
        parts = [coefficients(*(each[a:b] for each in (logp, mu, advantage, weights)), settings)
                 for a, b in ((0, 7), (7, 50))]  # fmt: skip
        torch.testing.assert_close(torch.cat([part.push for part in parts]), whole.push)
        for name, value in whole.figures.items():
            torch.testing.assert_close(sum(part.figures[name] for part in parts), value)
    assert PolicyGradient(veto=1e-4).needs_rows and PolicyGradient(ratio="sequence").needs_rows


def test_l2_all_masked_is_zero_and_finite_in_every_form():
    for settings in (PolicyGradient(), CLIP, PolicyGradient(ratio="sequence", surrogate="clip", geometric=(0.5, 2.0))):
        loss, gradient, figures = run(log(0.5, 0.5), log(0.1, 0.2), [1.0, -1.0], settings, torch.zeros(2), rows=[0, 1])
        assert loss == 0 and gradient.abs().max() == 0 and set(figures.values()) == {0.0}


def test_l5_ratios_are_taken_of_raw_tempered_logprobs():
    """A sampler's renormalised logprobs (top-p) would show a policy that has not moved as one that has lost ground."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0]) / 0.7
    raw = torch.log_softmax(logits, -1)
    kept = torch.log_softmax(logits[:2], -1)
    assert ratio(raw[:2], raw[:2]).tolist() == [1.0, 1.0]
    assert (ratio(raw[:2], kept) < 0.95).all()


@pytest.mark.parametrize("gap", [1e3, -1e3, 1e30, float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "settings",
    [
        PolicyGradient(geometric=(0.9, 1.1), max_k3=0.01, veto=1e-4, sequence_delta=0.1, max_drift=1.0),
        PolicyGradient(surrogate="clip", ratio="sequence", kl_coef=1.0, kl_kind="k3", kl_unbiased=True, **FREE),
        PolicyGradient(surrogate="clip", against="proximal", icepop=(0.5, 5.0), kl_coef=1.0, kl_kind="k2", **FREE),
    ],
)
def test_l6_exponents_never_overflow(gap, settings):
    logp, far = torch.tensor([-1.0]), torch.tensor([-1.0 - gap])
    assert math.isfinite(ratio(logp, far).item())
    loss, gradient, figures = run(logp, far, [1.0], settings, old=logp, reference=far)
    assert math.isfinite(loss) and torch.isfinite(gradient).all()
    assert all(math.isfinite(value) for value in figures.values())


def test_l7_the_ratio_is_not_one_for_ever():
    mu = torch.tensor([-2.0])
    values = [ratio(torch.tensor([logp]), mu).item() for logp in (-2.0, -1.9, -1.5)]
    assert values == pytest.approx([1.0, math.exp(0.1), math.exp(0.5)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_l8_weight_zero_is_exactly_zero_whatever_stands_there(bad):
    weights = torch.tensor([1.0, 0.0])
    whole = PolicyGradient(
        surrogate="clip", ratio="sequence", against="proximal", geometric=(0.9, 1.1), kl_coef=0.1, kl_kind="k2", **FREE
    )
    for settings in (PolicyGradient(), whole):
        same = torch.tensor([-1.0, bad])
        loss, gradient, figures = run(
            same, same, torch.tensor([1.0, bad]), settings, weights, rows=[0, 0], old=same, reference=same
        )
        assert gradient.tolist() == [-1.0, 0.0] and math.isfinite(loss)
        assert figures["positive"] == 1 and figures["ratio"] == 1

"""The maths of the losses, by enumeration on small vocabularies and against hand-computed numbers.

The identities, and the tests that pin them (this file's, where none is named):
H0  k1, k2, k3 as losses: no gradient, that of KL(pi||ref), that of KL(ref||pi); `test_surrogates.py` as anchors
H1  at equality the tail bucket has no gradient, truncation has
H2  the sampled token's gradient is the reverse KL's
H3  limits and symmetry of the JSD
H4  what is detached; `test_surrogates.py` for ratios, advantages, old and reference logprobs
H5  on policy the weight is 1 and the loss the plain policy gradient: `test_surrogates.py`
H6  a rejected token does not change the others: `test_surrogates.py`
H8  RLOO, also with rewards missing: `test_algorithms.py`, `test_group.py`
H9  a lone success is taught nothing: `test_algorithms.py`
H10 the push of a negative fades with its probability: `test_surrogates.py`
H12 teacher and student share the completion's ids: `engines/test_embedded_trainer.py`
H7, H11 and H13 are of a tracker of success rates, an averaged adapter and estimators of off-policy value, none of which
there is. Beyond them: weight 0 is exactly zero (L2, L8).
"""

import math

import pytest
import torch

from practicum.algorithms import losses

V = 6


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.tensor([[0.3, -1.2, 0.8, 0.1, -0.4, 2.0]], requires_grad=True)


@pytest.fixture
def other() -> torch.Tensor:
    return torch.tensor([[1.0, 0.2, -0.5, 0.7, 0.0, -1.0]])


def _gradient(value: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, at)[0]


def _expected_gradient(logits, term) -> torch.Tensor:
    """Gradient of sum_y sg[pi(y)] term(log pi(y), y): what sampling y ~ pi would average to."""
    logp = torch.log_softmax(logits, -1)[0]
    return _gradient((logp.exp().detach() * torch.stack([term(logp[y], y) for y in range(V)])).sum(), logits)


def test_k1_k2_k3_as_losses_have_zero_reverse_and_forward_kl_gradients(logits, other):
    ref = torch.log_softmax(other, -1)[0]
    reverse = _gradient(losses.full_kl(logits, other).sum(), logits)
    forward = _gradient(losses.full_kl(other, logits).sum(), logits)
    for estimator, expected in (
        (losses.k1, torch.zeros_like(reverse)),
        (losses.k2, reverse),
        (losses.k3, forward),
    ):
        found = _expected_gradient(logits, lambda logp, y, estimator=estimator: estimator(logp, ref[y]))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_estimators_average_to_the_kl(logits, other):
    logp, ref = torch.log_softmax(logits, -1)[0], torch.log_softmax(other, -1)[0]
    exact = losses.full_kl(logits, other)[0]
    for estimator in (losses.k1, losses.k3):
        torch.testing.assert_close((logp.exp() * estimator(logp, ref)).sum(), exact)
    assert (losses.k3(logp, ref) >= 0).all()


@pytest.mark.parametrize("kind", ["reverse_kl", "forward_kl", "jsd"])
def test_at_equality_the_tail_bucket_has_no_gradient(kind, logits):
    same = logits.detach()
    for top_k in (0, 2, 3):
        value = losses.divergence(logits, same, kind=kind, top_k=top_k)
        torch.testing.assert_close(value, torch.zeros(1), atol=1e-6, rtol=0)
        assert _gradient(value.sum(), logits).abs().max() < 1e-6


def test_at_equality_plain_truncation_has_a_gradient(logits):
    value = losses.divergence(logits, logits.detach(), kind="reverse_kl", top_k=2, tail=False)
    assert _gradient(value.sum(), logits).abs().max() > 0.05


def test_top_k_with_tail_is_a_lower_bound_that_becomes_exact(logits, other):
    full = losses.divergence(logits, other)
    values = [losses.divergence(logits, other, top_k=k) for k in range(1, V + 1)]
    assert all(value <= full + 1e-6 for value in values)
    torch.testing.assert_close(values[-1], full)
    # K = V - 1: the tail bucket holds one entry, so nothing is lost.
    torch.testing.assert_close(values[-2], full)


def test_top_k_takes_the_students_ids(logits, other):
    p, q = torch.softmax(logits, -1)[0], torch.softmax(other, -1)[0]
    best = int(p.argmax())
    expected = p[best] * (p[best] / q[best]).log() + (1 - p[best]) * ((1 - p[best]) / (1 - q[best])).log()
    torch.testing.assert_close(losses.divergence(logits, other, top_k=1)[0], expected)


def test_the_sampled_token_gradient_is_the_reverse_kl_gradient(logits, other):
    logq = torch.log_softmax(other, -1)[0]
    expected = _gradient(losses.divergence(logits, other, kind="reverse_kl").sum(), logits)

    def term(logp, y):
        return -losses.sampled_advantage(logp, logq[y]) * logp

    torch.testing.assert_close(_expected_gradient(logits, term), expected, atol=1e-6, rtol=1e-5)


def test_kl_against_hand_computed_numbers():
    p = torch.log(torch.tensor([[0.5, 0.5]]))
    q = torch.log(torch.tensor([[0.25, 0.75]]))
    forward = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    reverse = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert losses.divergence(p, q, kind="reverse_kl").item() == pytest.approx(reverse, abs=1e-6)
    assert losses.divergence(p, q, kind="forward_kl").item() == pytest.approx(forward, abs=1e-6)
    assert losses.full_kl(p, q).item() == pytest.approx(reverse, abs=1e-6)
    assert losses.entropy(p).item() == pytest.approx(math.log(2))


def test_jsd_limits_and_symmetry(logits, other):
    wide, wide_other = logits.double(), other.double()
    reverse = losses.divergence(wide, wide_other, kind="reverse_kl")
    forward = losses.divergence(wide, wide_other, kind="forward_kl")
    small = 1e-3
    near_forward = losses.divergence(wide, wide_other, kind="jsd", alpha=small) / small
    near_reverse = losses.divergence(wide, wide_other, kind="jsd", alpha=1 - small) / small
    torch.testing.assert_close(near_forward, forward, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(near_reverse, reverse, rtol=1e-2, atol=1e-3)
    one, two = (losses.divergence(a, b, kind="jsd", alpha=0.5) for a, b in ((logits, other), (other, logits.detach())))
    torch.testing.assert_close(one, two)
    assert one.item() <= math.log(2)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.5])
def test_jsd_refuses_its_ends(alpha, logits, other):
    with pytest.raises(ValueError, match="forward_kl"):
        losses.divergence(logits, other, kind="jsd", alpha=alpha)


def test_teacher_advantage_and_weights_carry_no_gradient(logits):
    teacher = torch.zeros(1, V, requires_grad=True)
    weights = torch.ones(1, requires_grad=True)
    losses.distill(logits, teacher, weights, kind="jsd", top_k=2)[0].backward()
    assert teacher.grad is None and weights.grad is None
    logprob = losses.token_logprobs(logits, torch.tensor([2]))
    assert not losses.sampled_advantage(logprob, torch.full((1,), -1.0, requires_grad=True)).requires_grad


def test_an_impossible_token_of_the_teacher_counts_as_nothing_where_the_student_never_goes():
    student = torch.tensor([[0.0, 0.0, float("-inf")]], requires_grad=True)
    teacher = torch.tensor([[0.0, 0.0, float("-inf")]])
    value = losses.divergence(student, teacher)
    assert value.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weight_zero_is_exactly_zero(bad):
    logp = torch.tensor([-1.0, bad], requires_grad=True)
    weights = torch.tensor([1.0, 0.0])
    loss = losses.cross_entropy(logp, weights)
    assert loss.item() == 1.0
    assert _gradient(loss, logp).tolist() == [-1.0, 0.0]


def test_all_masked_is_zero_and_finite(logits, other):
    nothing = torch.zeros(1)
    for make in (
        lambda logp: losses.cross_entropy(logp, nothing),
        lambda logp: losses.distill(logits, other, nothing)[0],
    ):
        loss = make(losses.token_logprobs(logits, torch.tensor([0])))
        assert loss.item() == 0
        assert _gradient(loss, logits).abs().max() == 0


def test_a_clipped_divergence_keeps_its_direction(logits, other):
    value = losses.divergence(logits, other)
    whole = _gradient(value.sum(), logits)
    clipped = losses.clip_divergence(losses.divergence(logits, other), 0.1)
    assert clipped.item() == pytest.approx(0.1)
    torch.testing.assert_close(_gradient(clipped.sum(), logits), whole * (0.1 / value.item()))
    torch.testing.assert_close(losses.clip_divergence(value, 100.0), value)
    assert losses.clip_divergence(value, None) is value


def test_sums_do_not_depend_on_the_split():
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(1000, generator=generator)
    weights = torch.full((1000,), 1e-3)
    whole = losses.cross_entropy(logp, weights)
    parts = sum(losses.cross_entropy(logp[a:b], weights[a:b]) for a, b in ((0, 100), (100, 1000)))
    torch.testing.assert_close(whole, parts)
    # 100 tokens at 0.5 and 900 at 0.3 are 0.32, however they are split.
    mixed = torch.cat([torch.full((100,), -0.5), torch.full((900,), -0.3)])
    assert losses.cross_entropy(mixed, weights).item() == pytest.approx(0.32)


def test_a_token_the_told_policy_hardly_says_is_never_raised():
    untold = torch.log(torch.tensor([[0.6, 0.3, 0.099, 0.001]]))
    told = torch.log(torch.tensor([[0.2, 0.7, 0.098, 0.002]]))
    free = losses.contrasted(untold, told, untold, 3.0)
    held = losses.contrasted(untold, told, untold, 3.0, plausibility=0.1)
    torch.testing.assert_close(free[0, 3] - untold[0, 3], torch.tensor(3 * math.log(2)))
    torch.testing.assert_close(held[0, 3], untold[0, 3])
    torch.testing.assert_close(held[0, :3], free[0, :3])
    lowered = losses.contrasted(
        untold, torch.log(torch.tensor([[0.2, 0.7, 0.0999, 0.0001]])), untold, 3.0, plausibility=0.1
    )
    assert lowered[0, 3] < untold[0, 3] - 6


def test_a_redirected_policy_says_the_added_text_where_it_would_have_ended(logits):
    before = logits.softmax(-1)
    after = losses.redirected(logits, (0, 2, 4), 4).exp()
    torch.testing.assert_close(after.sum(-1), torch.ones(len(after)))
    torch.testing.assert_close(after[:, 4], before[:, 4] + (1 - 1e-4) * before[:, [0, 2]].sum(-1))
    torch.testing.assert_close(after[:, [0, 2]], 1e-4 * before[:, [0, 2]])
    kept = [index for index in range(before.shape[1]) if index not in (0, 2, 4)]
    torch.testing.assert_close(after[:, kept], before[:, kept])

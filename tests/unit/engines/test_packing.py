"""Rows behind one copy of a shared beginning: the same logits and gradients as rows side by side (L1)."""

from typing import Any

import pytest
import torch
from embedded_training import make_trainer, warm

from practicum.engines.embedded.batches import tokens_of
from practicum.types.training import Datum, LossName

SHARED = tuple(range(5, 45))


def row(name: str, own: tuple[int, ...], completion: tuple[int, ...]) -> Datum:
    size = len(completion)
    return Datum(
        row_id=name,
        prompt_ids=SHARED + own,
        completion_ids=completion,
        weights=(0.1,) * size,
        advantages=(0.5,) * size,
        logprobs=(-3.0,) * size,
        temperature=0.8,
    )


ROWS = [row("a", (), (50, 51)), row("b", (60, 61, 62), (52,)), row("c", (60,), (53, 54, 55, 56)), row("d", (), (57,))]


def test_a_shared_beginning_lies_in_the_sequence_once() -> None:
    tokens = tokens_of(ROWS)
    assert tokens.ids_BT.shape == (1, 39 + 3 + 5 + 6 + 2)
    assert tokens.positions_BT is not None and tokens.positions_BT[0, 39:42].tolist() == [39, 40, 41]
    assert int(tokens.keep_BT.sum()) == 8


def test_rows_without_a_shared_beginning_lie_side_by_side() -> None:
    apart = [row("a", (), (50,)), Datum(row_id="z", prompt_ids=(9, *SHARED), completion_ids=(5,), weights=(1.0,))]
    assert tokens_of(apart).mask_B1TT is None and tokens_of(apart[:1]).mask_B1TT is None


@pytest.mark.parametrize("loss", ["policy_gradient", "cross_entropy"])
def test_packed_rows_give_the_logprobs_and_gradients_of_each_row_alone(loss: LossName, model: Any) -> None:
    together, apart = (make_trainer(model, micro_batch_tokens=10_000) for _ in range(2))
    for trainer in (together, apart):
        warm(trainer)
    packed = together.forward_backward(ROWS, loss, key="all")
    alone = [apart.forward_backward([each], loss, key=each.row_id) for each in ROWS]
    assert packed.loss_sum == pytest.approx(sum(each.loss_sum for each in alone), rel=1e-5)
    for each in alone:
        for name, values in each.logprobs.items():
            assert packed.logprobs[name] == pytest.approx(values, abs=1e-5)
    for name, parameter in together.policy.parameters().items():
        torch.testing.assert_close(parameter.grad, apart.policy.parameters()[name].grad, atol=1e-5, rtol=1e-4)

"""Who is next, and how many at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from practicum.harnesses.line import PLACE_OF_THE_OLDEST, Gate, Line


def test_higher_priorities_first_and_in_order_of_arrival_within() -> None:
    line: Line[str] = Line()
    for item, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        line.push(item, priority)
    assert line.discard("c") and not line.discard("c")
    assert [line.pop() for _ in range(len(line))] == ["b", "d", "a"]
    with pytest.raises(IndexError):
        line.pop()


def test_an_item_that_comes_back_waits_anew() -> None:
    line: Line[str] = Line()
    line.push("a", 0)
    line.push("b", 0)
    line.discard("a")
    line.push("a", 0)
    assert [line.pop(), line.pop()] == ["b", "a"]


def test_urgent_work_without_end_starves_nobody() -> None:
    line: Line[int] = Line()
    for patient in range(3):
        line.push(patient, 0)
    served = []
    for urgent in range(100, 100 + 3 * PLACE_OF_THE_OLDEST):
        line.push(urgent, 9)
        served.append(line.pop())
    assert [item for item in served if item < 100] == [0, 1, 2]
    assert served.index(0) == PLACE_OF_THE_OLDEST - 1


async def test_a_gate_lets_no_more_in_than_its_limit_and_the_urgent_first() -> None:
    gate, order, most = Gate(2), [], 0

    async def visit(name: str, priority: int) -> None:
        nonlocal most
        async with gate.entered(priority):
            order.append(name)
            most = max(most, gate.inside)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name, priority in (("a", 0), ("b", 0), ("c", 0), ("d", 5), ("e", 0)):
            group.create_task(visit(name, priority))
    assert (order, most, gate.inside, gate.waiting) == (["a", "b", "d", "c", "e"], 2, 0, 0)


async def test_who_is_cancelled_in_the_line_takes_no_place_with_him() -> None:
    gate = Gate(1)
    await gate.enter()
    waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # not told yet when the place becomes free
    gate.leave()
    waiting[1].cancel()  # it has been given the place, and has not run since
    await asyncio.wait(waiting, timeout=1)
    assert Counter(task.cancelled() for task in waiting) == {True: 2, False: 1}
    assert (gate.inside, gate.waiting) == (1, 0)
    gate.leave()
    assert gate.inside == 0 and gate.try_enter() and not gate.try_enter()

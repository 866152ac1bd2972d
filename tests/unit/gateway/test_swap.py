"""Following the live pointer, with a registry and a sampler that say what they are told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.engines.scripted import ScriptedSampler
from practicum.errors import CorruptArtifact, EngineError, NotFound, StoreError
from practicum.gateway.swap import Swapper
from practicum.types.policies import PolicyStatus, PolicyVersion


def version(number: int, status: PolicyStatus = "live") -> PolicyVersion:
    return PolicyVersion(
        version=number, parent=None, status=status, adapter_path=None, digest=f"d{number}", created_at=0.0
    )


class Pointer:
    """A registry with one pointer."""

    def __init__(self) -> None:
        self.now = version(0)
        self.down = False
        self.known = {0: version(0), 1: version(1, "retired"), 2: version(2, "candidate"), 3: version(3, "withdrawn")}

    def live(self) -> PolicyVersion:
        if self.down:
            raise StoreError("down")
        return self.now

    def get(self, number: int) -> PolicyVersion:
        return self.known[number]

    def list(self) -> Sequence[PolicyVersion]:
        return list(self.known.values())


class Engine(ScriptedSampler):
    """Counts loads and refuses some versions."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[int] = []
        self.broken: set[int] = set()

    async def load(self, version: int, adapter_path: Path | None, digest: str) -> None:
        self.loads.append(version)
        if version in self.broken:
            raise CorruptArtifact(f"version {version} at /secret/path is broken")
        await super().load(version, adapter_path, digest)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def parts() -> tuple[Swapper, Pointer, Engine, Clock]:
    pointer, engine, clock = Pointer(), Engine(), Clock()
    return Swapper(pointer, engine, poll_s=1.0, clock=clock), pointer, engine, clock


async def test_nothing_is_served_before_a_version_is_loaded() -> None:
    swapper, pointer, _, _ = parts()
    pointer.down = True
    await swapper.look()
    with pytest.raises(EngineError) as caught:
        swapper.current()
    assert caught.value.status == 503
    pointer.down = False
    await swapper.look()
    assert swapper.current().version == 0 and swapper.alarm is None


async def test_a_new_live_version_is_loaded_and_then_served_and_a_rollback_is_the_same() -> None:
    swapper, pointer, engine, _ = parts()
    for number in (0, 1, 0):
        pointer.now = version(number)
        await swapper.look()
        assert swapper.current().version == number
    assert engine.loads == [0, 1, 0], "the engine may have dropped it meanwhile, so it is asked again"


async def test_a_version_that_cannot_be_loaded_leaves_the_one_before_and_is_alarmed() -> None:
    swapper, pointer, engine, clock = parts()
    await swapper.look()
    engine.broken = {7}
    pointer.now = version(7)
    for _ in range(5):
        await swapper.look()
    assert swapper.current().version == 0
    assert swapper.alarm == "version 7 cannot be served: corrupt_artifact"
    assert engine.loads == [0, 7], "it is not hammered"
    clock.now += 2.0
    await swapper.look()
    assert engine.loads == [0, 7, 7]
    engine.broken = set()
    clock.now += 60.0
    await swapper.look()
    assert swapper.current().version == 7 and swapper.alarm is None


async def test_a_rollback_past_a_broken_version_clears_the_alarm() -> None:
    swapper, pointer, engine, _ = parts()
    await swapper.look()
    engine.broken, pointer.now = {7}, version(7)
    await swapper.look()
    assert swapper.alarm
    pointer.now = version(0)
    await swapper.look()
    assert swapper.alarm is None


async def test_at_start_up_a_broken_live_version_is_stood_in_for_by_a_released_ancestor() -> None:
    swapper, pointer, engine, clock = parts()
    pointer.known[3] = replace(version(3, "withdrawn"), parent=1)
    pointer.now, engine.broken = replace(version(7), parent=3), {7}
    await swapper.look()
    assert swapper.current().version == 1, "a withdrawn version is passed over"
    assert swapper.wanted == 7 and swapper.alarm == "version 7 cannot be served: corrupt_artifact"
    engine.broken, clock.now = set(), 60.0
    await swapper.look()
    assert swapper.current().version == 7 and swapper.alarm is None


async def test_a_version_that_the_engine_dropped_is_loaded_again_before_an_answer() -> None:
    swapper, _, engine, _ = parts()
    await swapper.look()
    engine.loads.clear()
    assert (await swapper.ensure_current()).version == 0 and engine.loads == [0]
    engine.broken = {0}
    with pytest.raises(EngineError, match="Version 0 cannot be served"):
        await swapper.ensure_current()


async def test_released_versions_can_be_asked_for_and_others_cannot() -> None:
    swapper, _, _, _ = parts()
    assert (await swapper.ensure(1)).version == 1
    for number in (2, 3):
        with pytest.raises(NotFound):
            await swapper.ensure(number)

"""The whole road of a rollout: a real gateway on a loopback port, real folders and processes, a scripted model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.integration.harnesses.rollout_world import HARNESSES, Folders, Runs, World, ask, task, until

from practicum.engines.scripted import ScriptedSampler, Step
from practicum.errors import Conflict, NotFound, RequestError, StoreError
from practicum.harnesses.grading import Evidence
from practicum.harnesses.harness import HarnessEnd, HarnessJob
from practicum.harnesses.results import by_group
from practicum.harnesses.runner import RolloutLimits
from practicum.sandboxes.sandbox import Sandbox
from practicum.store import Store, lookup, open_store
from practicum.types.outcomes import Outcome
from practicum.types.rollouts import Timeouts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


async def test_a_group_is_run_graded_and_collected_with_its_tokens(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task("agent", num_samples=3, files={"note.txt": "x"}))
        results = await world.service.collect(group_id)
        keys = store.keys()
    assert [one.rollout.index for one in results] == [0, 1, 2]
    for one in results:
        rollout = one.rollout
        assert (rollout.cause, rollout.policy_could_cause, one.reward, one.excluded) == ("finished", True, 1.0, None)
        assert (rollout.output, rollout.attempt, rollout.turns_done) == ("Say lamp.\n", 1, 1)
        assert [(o.name, o.reward, o.by) for o in rollout.outcomes] == [("word", 1.0, "reads")]
        assert one.sampled_tokens == len("Say lamp.") + 1  # and the token that ends the answer
        assert [call.session_id for call in store.calls(rollout.session_id)] == [rollout.rollout_id]
        assert [stage.stage for stage in rollout.stages] == ["prepare", "run", "grade"]
        assert all(0 <= stage.agent_s <= stage.wall_s for stage in rollout.stages)
    assert list(by_group(results)) == [("t", "agent")]
    assert world.folders_left() == []
    assert len(keys) == 3 and all(key.revoked_at is not None for key in keys)
    assert {key.session_id for key in keys} == {one.rollout.rollout_id for one in results}


async def test_w2_e6_a_rollout_without_a_model_call_takes_no_part_and_says_why(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        (one,) = await world.service.collect(await world.service.submit(task("silent")))
    assert (one.rollout.cause, one.rollout.policy_could_cause, one.reward) == ("no_model_call", False, None)
    assert one.excluded == "no_model_call: no model call came"


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/v2/chat/completions", {}, "POST /v2/chat/completions: 404 unknown_url"),
        ("/v1/chat/completions", {"model": "gpt-9"}, "POST /v1/chat/completions: 404 model_not_found"),
        ("/v1/chat/completions", {"stream": True, "n": 2}, "POST /v1/chat/completions: 400 unsupported_value: `n`"),
    ],
    ids=["wrong URL", "wrong model", "refused stream"],
)
async def test_e6_what_was_refused_is_the_reason_where_no_call_was_seen(
    tmp_path: Path, store: Store, path: str, fields: dict[str, Any], says: str
) -> None:
    async def goes_wrong(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
        """Asks twice in the wrong way, and takes no notice."""
        async with httpx.AsyncClient(trust_env=False) as http:
            for _ in range(2):
                await http.post(
                    f"{job.endpoint.base_url}{path}",
                    headers={"authorization": f"Bearer {job.endpoint.api_key}"},
                    json={"model": job.endpoint.model, "messages": [{"role": "user", "content": "x"}], **fields},
                )
        return HarnessEnd(exit_code=0, output="done")

    async with World(tmp_path, store, harnesses={"goes_wrong": Runs("goes_wrong", goes_wrong)}) as world:
        (one,) = await world.service.collect(await world.service.submit(task("goes_wrong")))
    assert (one.rollout.cause, one.reward, one.rows) == ("no_model_call", None, ())
    assert one.excluded is not None and one.excluded.startswith(
        f"no_model_call: no model call came; refused 2 times: {says}"
    )


async def test_r7_every_end_has_its_cause(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, harnesses={"flaky": flaky()}) as world:

        async def run(harness: str, **given: Any) -> Any:
            (one,) = await world.service.collect(await world.service.submit(task(harness, **given)))
            return one

        failed = await run("asks", options={"exit_code": 3})
        assert (failed.rollout.cause, failed.rollout.policy_could_cause, failed.reward) == ("agent_failed", True, 1.0)
        assert "exit status 3" in failed.rollout.error

        late = await run("asks", options={"after_s": 60.0}, timeouts=Timeouts(agent_s=0.3))
        assert (late.rollout.cause, late.rollout.policy_could_cause, late.reward) == ("agent_timeout", True, 1.0)

        whole = await run("asks", options={"after_s": 60.0}, timeouts=nested(0.4))
        assert (whole.rollout.cause, whole.rollout.policy_could_cause, whole.reward) == ("expired", False, None)

        lost = await run("lost")
        assert (lost.rollout.cause, lost.rollout.attempt, lost.reward) == ("harness_failed", 3, None)
        assert [attempt.cause for attempt in lost.rollout.attempts] == ["harness_failed", "harness_failed"]
        assert lost.excluded == "harness_failed: The harness was lost."

        again = await run("flaky")
        assert (again.rollout.cause, again.rollout.attempt, again.reward) == ("finished", 2, 1.0)
        assert again.rollout.session_id == f"{again.rollout.rollout_id}.2"
        assert [attempt.session_id for attempt in again.rollout.attempts] == [again.rollout.rollout_id]
        assert again.sampled_tokens == len("Say lamp.") + 1  # of the attempt that counts
    assert world.folders_left() == []


async def test_a_sandbox_that_cannot_be_made_is_tried_again(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, folders=Folders(tmp_path / "boxes", fail=2)) as world:
        (one,) = await world.service.collect(await world.service.submit(task()))
        assert (one.rollout.cause, [lost.cause for lost in one.rollout.attempts]) == (
            "finished",
            ["sandbox_failed"] * 2,
        )
        world.folders.open_s, limits = 60.0, Timeouts(prepare_s=0.05)
        (slow,) = await world.service.collect(await world.service.submit(task(timeouts=limits)))
    assert (slow.rollout.cause, slow.rollout.error) == ("sandbox_failed", "it was not ready within 0.05 s")
    assert world.folders_left() == []


async def test_r7_a_grader_that_fails_or_hangs_is_no_zero(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        for options, says in (({"fail": True}, "the checker broke"), ({"hang": True}, "it took longer than 0.1 s")):
            asked = task(graders={"reads": options}, timeouts=Timeouts(grade_s=0.1))
            (one,) = await world.service.collect(await world.service.submit(asked))
            assert (one.rollout.cause, one.reward, one.rollout.outcomes[0].reward) == ("grader_failed", None, None)
            assert says in one.rollout.outcomes[0].reason
            assert one.excluded is not None and one.excluded.startswith("grader_failed: after finished")


async def test_w17_an_engine_that_fails_is_not_the_agents_fault(tmp_path: Path, store: Store) -> None:
    sampler = ScriptedSampler(lambda turn: Step(content="x", fail="out of memory"))
    async with World(tmp_path, store, sampler=sampler, limits=RolloutLimits(attempts=2, retry_pause_s=0.01)) as world:
        (one,) = await world.service.collect(await world.service.submit(task()))
    assert (one.rollout.cause, one.rollout.policy_could_cause, one.rollout.attempt) == ("endpoint_failed", False, 2)
    assert "out of memory" in (one.rollout.error or "")


async def test_the_agents_clock_stands_still_while_its_call_waits(tmp_path: Path, store: Store) -> None:
    """Time until a first token is ours; the same time spent by the agent itself is too long."""
    slow = ScriptedSampler(lambda turn: Step(content="l", delay_s=0.8))
    limits = Timeouts(agent_s=1.2)
    async with World(tmp_path, store, sampler=slow) as world:
        (held_up,) = await world.service.collect(await world.service.submit(task(timeouts=limits)))
        own = task(options={"after_s": 1.6}, timeouts=limits)
        (late,) = await world.service.collect(await world.service.submit(own))
    assert held_up.rollout.cause == "finished"
    run = next(stage for stage in held_up.rollout.stages if stage.stage == "run")
    assert run.wall_s > 1.5 and run.stalled_s > 0.7 and run.agent_s < 1.2
    assert late.rollout.cause == "agent_timeout"


async def test_200_rollouts_sixteen_at_a_time_lose_none(tmp_path: Path, store: Store) -> None:
    limits = RolloutLimits(prepare=4, ready=8, run=16, grade=4)
    async with World(tmp_path, store, limits=limits) as world:
        groups = [await world.service.submit(task(task_id=f"t{n}", num_samples=10, priority=n % 3)) for n in range(20)]
        results = [one for group in groups for one in await world.service.collect(group)]
    assert len(results) == len({one.rollout.rollout_id for one in results}) == 200
    assert {(one.rollout.cause, one.reward, one.excluded) for one in results} == {("finished", 1.0, None)}
    assert {len(group) for group in by_group(results).values()} == {10}
    assert store.count_calls() == 200
    assert world.folders.most_open <= limits.sandboxes and world.folders_left() == []


async def test_l17_cancelling_leaves_no_process_and_no_folder(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, limits=RolloutLimits(run=2, ready=2)) as world:
        group_id = await world.service.submit(task("sleeps", num_samples=6))
        await until(lambda: processes_in(tmp_path, "sleep") == 4)  # two in each of two sandboxes
        one = next(r for r in world.service.status(group_id).rollouts if r.state == "running")
        await world.service.cancel(group_id, one.rollout_id)
        assert store.get_rollout(one.rollout_id).cause == "cancelled"
        group = await world.service.cancel(group_id)
        assert {rollout.cause for rollout in group.rollouts} == {"cancelled"} and group.ended
        assert (processes_in(tmp_path), world.folders_left()) == (0, [])
        assert (await world.service.cancel(group_id)).ended  # a second time changes nothing
        with pytest.raises(NotFound):
            await world.service.cancel(group_id, "rollout_none")
        keys = store.keys()
        assert {key.revoked_at is None for key in keys} == {False}


async def test_a_group_that_has_enough_is_stopped_early(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, limits=RolloutLimits(run=2, ready=2)) as world:
        enough = task(num_samples=12, stop_after=3, options={"after_s": 0.1})
        results = await world.service.collect(await world.service.submit(enough))
        causes = [one.rollout.cause for one in results]
        assert set(causes) == {"finished", "stopped_early"} and 3 <= causes.count("finished") <= 4
        assert all(one.excluded is not None for one in results if one.rollout.cause == "stopped_early")

        group_id = await world.service.submit(
            task(num_samples=12, options={"after_s": 0.1}),
            until=lambda rollouts: any(r.reward == 1.0 for r in rollouts),
        )
        causes = [one.rollout.cause for one in await world.service.collect(group_id)]
        assert 1 <= causes.count("finished") <= 2 and causes.count("stopped_early") >= 10
    assert world.folders_left() == []


async def test_results_come_as_rollouts_end(tmp_path: Path, store: Store) -> None:
    may_end = [asyncio.Event() for _ in range(3)]

    async def in_turn(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
        await may_end[store.get_rollout(job.rollout_id).index].wait()
        return await HARNESSES["asks"].play(job, sandbox)

    async with World(tmp_path, store, harnesses={"in_turn": Runs("in_turn", in_turn)}) as world:
        group_id = await world.service.submit(task("in_turn", num_samples=3))
        may_end[2].set()
        results = world.service.results(group_id)
        seen = [(await anext(results)).rollout.index]
        early = await world.service.collect(group_id, wait_s=0.1)
        assert not world.service.status(group_id).ended
        for index in (0, 1):
            may_end[index].set()
            seen.append((await anext(results)).rollout.index)
        assert [one async for one in results] == [] and world.service.status(group_id).ended
    assert [one.rollout.index for one in early] == [2]
    assert seen == [2, 0, 1]


async def test_a_rollout_goes_on_in_its_sandbox_while_it_is_kept_open(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task(instructions=("Say lamp.", "Say desk."), keep_open_s=30.0))
        rollout_id = world.service.status(group_id).rollouts[0].rollout_id
        await until(lambda: store.get_rollout(rollout_id).state == "open")
        await world.service.go_on(rollout_id, "Say chair.", turn=2)
        await world.service.go_on(rollout_id, "Say chair.", turn=2)  # sent again: played once
        with pytest.raises(Conflict, match="number 3"):
            await world.service.go_on(rollout_id, "Say stool.", turn=2)
        await until(lambda: (now := store.get_rollout(rollout_id)).turns_done == 3 and now.state == "open")
        world.service.let_end(rollout_id)
        (one,) = await world.service.collect(group_id)
        assert (one.rollout.cause, one.rollout.turns_done, one.rollout.output) == ("finished", 3, "Say chair.")
        assert [stage.stage for stage in one.rollout.stages] == ["prepare", "run", "run", "run", "grade"]
        with pytest.raises(Conflict, match="no further instruction"):
            await world.service.go_on(rollout_id, "Say bed.")

        short = await world.service.submit(task(keep_open_s=0.05))
        (closed,) = await world.service.collect(short)
        assert closed.rollout.cause == "finished"


async def test_submitting_again_under_a_key_gives_the_same_group(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        first = await world.service.submit(task(), key="k")
        assert await world.service.submit(task(), key="k") == first
        assert await world.service.submit(task(), key="k", principal="other") != first
        with pytest.raises(Conflict, match="another task"):
            await world.service.submit(task(num_samples=2), key="k")
        await world.service.collect(first)
        assert await world.service.submit(task(), key="k") == first
    assert store.count_calls() == 2


async def test_what_cannot_be_run_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        for given, param in (
            ({"harness": "none"}, "harness"),
            ({"graders": {"none": {}}}, "graders"),
            ({"callback_url": "http://example.com/x"}, "callback_url"),
            ({"callback_url": "file:///etc/passwd"}, "callback_url"),
        ):
            with pytest.raises(RequestError) as caught:
                await world.service.submit(task(**given))
            assert caught.value.param == param
        with pytest.raises(NotFound):
            await world.service.collect("group_none")
        with pytest.raises(Conflict, match="Another rollout service"):
            async with World(tmp_path, store):
                pass


async def test_a_rollouts_key_is_its_sessions_alone_and_dies_with_it(tmp_path: Path, store: Store) -> None:
    keys: list[str] = []

    async def strays(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
        keys.append(job.endpoint.api_key)
        elsewhere = HarnessJob(
            rollout_id=job.rollout_id,
            instruction="",
            endpoint=replace(job.endpoint, base_url=job.endpoint.base_url.rpartition("/")[0] + "/somebody-elses"),
        )
        assert lookup(store, job.endpoint.api_key) is not None
        return HarnessEnd(exit_code=0, output=await ask(elsewhere, "lamp"))

    async with World(tmp_path, store, harnesses={"strays": Runs("strays", strays)}) as world:
        (one,) = await world.service.collect(await world.service.submit(task("strays", graders={})))
    assert [call.session_id for call in store.calls()] == [one.rollout.rollout_id]
    assert one.excluded == "no_reward: no grader was asked for" and len(one.rows) == 1
    assert lookup(store, keys[0]) is None


async def test_a_service_that_is_left_queues_what_ran_and_the_next_one_goes_on(tmp_path: Path, store: Store) -> None:
    limits = RolloutLimits(run=1, ready=1)
    async with World(tmp_path, store, limits=limits) as world:
        group_id = await world.service.submit(task(options={"after_s": 1.0}, num_samples=2))
        await until(lambda: any(rollout.state == "running" for rollout in world.service.status(group_id).rollouts))
    assert [rollout.state for rollout in store.get_group(group_id).rollouts] == ["queued", "queued"]
    assert world.folders_left() == []
    with pytest.raises(Conflict, match="does not run"):
        await world.service.collect(group_id)
    later = await world.service.submit(task())  # durable, though nobody runs it yet
    async with World(tmp_path, store, limits=limits) as world:
        results = [*await world.service.collect(group_id), *await world.service.collect(later)]
    assert [one.rollout.cause for one in results] == ["finished"] * 3
    assert sorted(len(one.rollout.attempts) for one in results) == [0, 0, 1] or len(results[0].rollout.attempts) >= 1


async def test_an_error_of_the_callers_own_leaves_as_it_is(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with World(tmp_path, store) as world:
            await world.service.submit(task("sleeps"))
            await asyncio.sleep(0.1)
            raise ZeroDivisionError
    assert world.folders_left() == [] and processes_in(tmp_path) == 0


def flaky() -> Runs:
    """Is lost the first time, and works from then on."""
    seen: set[str] = set()

    async def play(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
        first = job.rollout_id not in seen
        seen.add(job.rollout_id)
        return await HARNESSES["lost" if first else "asks"].play(job, sandbox)

    return Runs("flaky", play)


def nested(whole_s: float) -> Timeouts:
    return Timeouts(prepare_s=whole_s, agent_s=whole_s, grade_s=whole_s, whole_s=whole_s)


def processes_in(folder: Path, name: str | None = None) -> int:
    """Processes that work in a folder below `folder`."""
    found = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            inside = str(folder) in process.cwd() and process.pid != os.getpid()
            found += inside and name in (None, process.name())
    return found


async def test_a_further_instruction_sent_twice_at_one_moment_is_played_once(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        group_id = await world.service.submit(task(keep_open_s=30.0))
        rollout_id = world.service.status(group_id).rollouts[0].rollout_id
        await until(lambda: store.get_rollout(rollout_id).state == "open")
        await asyncio.gather(*(world.service.go_on(rollout_id, "Say chair.", turn=1) for _ in range(3)))
        assert store.get_rollout(rollout_id).instructions == ("Say lamp.", "Say chair.")
        world.service.let_end(rollout_id)
        (one,) = await world.service.collect(group_id)
    assert one.rollout.turns_done == 2


async def test_instructions_that_come_at_one_moment_to_a_queued_rollout_all_stand(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, limits=RolloutLimits(ready=1, run=1)) as world:
        first = await world.service.submit(task("sleeps"))
        group_id = await world.service.submit(task())
        second = await world.service.submit(task())
        for queued in (group_id, second):
            rollout_id = world.service.status(queued).rollouts[0].rollout_id
            await asyncio.gather(*(world.service.go_on(rollout_id, f"Say {word}.") for word in ("desk", "bed")))
            assert sorted(store.get_rollout(rollout_id).instructions[1:]) == ["Say bed.", "Say desk."]
        await world.service.cancel(first)
        (one,) = await world.service.collect(group_id)
    assert one.rollout.turns_done == 3


class Broken:
    """A grader of a customer's own whose word is none."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._how = options["how"]

    async def grade(self, evidence: Evidence) -> Any:
        if self._how == "cancelled":
            inner = asyncio.create_task(asyncio.sleep(60))
            inner.cancel()
            await inner
        words = {
            "number": [0.5],
            "one outcome": Outcome(name="x", reward=1.0),
            "no reason": [Outcome(name="x", reward=None, reason=None)],  # type: ignore[arg-type]
            "no float": [Outcome(name="x", reward=Fraction(1, 2))],  # type: ignore[arg-type]
        }
        return words[self._how]


@pytest.mark.parametrize("how", ["cancelled", "number", "one outcome", "no reason", "no float"])
async def test_a_grader_that_breaks_the_rules_spoils_no_other_rollout(how: str, tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store, graders={"broken": Broken}) as world:
        broken = await world.service.submit(task(graders={"broken": {"how": how}}))
        (one,) = await world.service.collect(broken, wait_s=10)
        (other,) = await world.service.collect(await world.service.submit(task()), wait_s=10)
    assert one.rollout.cause == "grader_failed" or (how == "no float" and one.reward == 0.5)
    assert other.reward == 1.0


@pytest.mark.parametrize("how", ["cancelled", "no text"])
async def test_a_harness_that_breaks_the_rules_spoils_no_other_rollout(how: str, tmp_path: Path, store: Store) -> None:
    async def breaks(job: HarnessJob, sandbox: Sandbox) -> HarnessEnd:
        if how == "cancelled":
            raise asyncio.CancelledError
        await ask(job, job.instruction)
        return HarnessEnd(exit_code=0, output=None)  # type: ignore[arg-type]

    async with World(tmp_path, store, harnesses={"breaks": Runs("breaks", breaks)}) as world:
        (one,) = await world.service.collect(await world.service.submit(task("breaks")), wait_s=10)
        (other,) = await world.service.collect(await world.service.submit(task()), wait_s=10)
    assert one.rollout.cause == "harness_failed"
    assert other.reward == 1.0


async def test_a_submission_whose_caller_went_away_is_run_when_it_is_sent_again(tmp_path: Path, store: Store) -> None:
    async with World(tmp_path, store) as world:
        sending = asyncio.create_task(world.service.submit(task(), key="k"))
        await asyncio.sleep(0)
        sending.cancel()
        await until(lambda: bool(store.groups()))
        group_id = await world.service.submit(task(), key="k")
        (one,) = await world.service.collect(group_id, wait_s=10)
    assert one.reward == 1.0


@pytest.mark.parametrize("verb", ["calls", "get_rollout"])
async def test_a_store_that_cannot_be_read_for_a_moment_holds_up_and_loses_nothing(
    verb: str, tmp_path: Path, store: Store
) -> None:
    real, left = getattr(store, verb), [2]

    def fails_at_first(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise StoreError("disk I/O error")
        return real(*args, **options)

    async with World(tmp_path, store) as world:
        setattr(store, verb, fails_at_first)
        group_id = await world.service.submit(task())
        await until(lambda: world.service.status(group_id).ended)
    assert left == [0]
    assert world.service.status(group_id).rollouts[0].reward == 1.0

"""A judge behind a real HTTP endpoint. Without exactly one score for each criterion there is none (R8)."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.feedback.graders.left_behind import grade, left, rewards

from practicum.errors import UsageError
from practicum.feedback.graders import GraderSettings, Judge, graders
from practicum.feedback.graders.grader import Failed
from practicum.feedback.graders.rubric import parse_scores

CRITERIA = {"short": "It is short.", "polite": "It is polite."}


@asynccontextmanager
async def judge(*answers: Callable[[], str] | str | None) -> AsyncIterator[tuple[GraderSettings, list[dict[str, Any]]]]:
    """A real HTTP server in the judge's place: it gives each answer in turn, the last one again; None never answers."""
    asked: list[dict[str, Any]] = []
    hanging = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(next(line.split(":")[1] for line in head.lower().splitlines() if line.startswith("content-length")))
        asked.append({"head": head, **json.loads(await reader.readexactly(size))})
        answer = answers[min(len(asked), len(answers)) - 1]
        if answer is None:
            await hanging.wait()
        status, text = ("500 Oh", "no") if answer == "500" else ("200 OK", json.dumps(completion(str(answer))))
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield GraderSettings(judge=Judge(base_url=url, model="judge-model", api_key="k-1")), asked
        hanging.set()


def completion(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


GOOD = '{"scores": {"polite": 1, "short": 0.5}}'


async def test_a_judge_scores_each_criterion_and_the_mean_is_the_reward(tmp_path: Path) -> None:
    async with left(tmp_path) as end, judge(GOOD) as (settings, asked):
        said = await grade(
            "rubric", end, settings, criteria=CRITERIA, weights={"short": 3.0}, files=["*.txt"], task="T"
        )
        assert list(rewards(said).items()) == [("reward", 0.625), ("short", 0.5), ("polite", 1.0)]
        (request,) = asked
        assert request["model"] == "judge-model" and "authorization: bearer k-1" in request["head"].lower()
        system, user = (message["content"] for message in request["messages"])
        mark = system.partition("lines that say ")[2].partition(". It is data")[0]
        assert len(mark) > 16 and user.count(mark) == 2
        work = user.split(mark)[1]
        assert "I wrote it." in work and "'out.txt':\nhi" in work and "It is short." not in work


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"scores": {"short": 1}}', "the criteria are"),
        ('{"scores": {"short": 1, "polite": 1, "more": 1}}', "the criteria are"),
        ('{"scores": [1, 1, 1]}', "the criteria are"),
        ('{"scores": {"short": 1.5, "polite": 1}}', "not between 0 and 1"),
        ('{"scores": {"short": NaN, "polite": 1}}', "no finite number"),
        ('{"scores": {"short": true, "polite": 1}}', "no number"),
        ("Both are fine: 8/10", "has no scores"),
        ("", "has no scores"),
        ("500", "status 500"),
        (None, "did not answer within 0.4 s"),
    ],
)
async def test_r8_a_judge_that_gives_no_score_is_asked_again_then_there_is_none(
    tmp_path: Path, bad: str | None, reason: str
) -> None:
    patient_s = 30.0 if bad is not None else 3.0  # what answers has time; only the judge that never does is waited out
    async with left(tmp_path) as end:
        async with judge(bad, GOOD) as (settings, asked):
            said = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=patient_s)
            assert said[0].reward == 0.75 and len(asked) == 2
        async with judge(bad) as (settings, asked):
            settled_s = 30.0 if bad is not None else 0.4
            (only,) = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=settled_s, tries=2)
            assert only.reward is None and reason in only.reason and len(asked) == 2
        (only,) = await grade("rubric", end, settings, criteria=CRITERIA, timeout_s=0.4, tries=1)  # nobody listens
        assert only.reward is None


def test_a_fenced_answer_is_read_and_prose_around_it_is_not() -> None:
    assert parse_scores(f"```json\n{GOOD}\n```", CRITERIA) == {"short": 0.5, "polite": 1.0}
    with pytest.raises(Failed):
        parse_scores(f"Here it is: {GOOD}", CRITERIA)


def test_a_rubric_needs_a_judge_and_criteria() -> None:
    with pytest.raises(UsageError, match="No judge is configured"):
        graders(GraderSettings())["rubric"]({"criteria": CRITERIA})
    judged = GraderSettings(judge=Judge(base_url="http://x", model="m", api_key="secret"))
    with pytest.raises(UsageError, match="criteria"):
        graders(judged)["rubric"]({"criteria": {}})
    assert "secret" not in repr(judged)

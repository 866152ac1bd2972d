"""The rollout routes over a socket: bodies, errors of one shape, who sees what, the document, the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.openapi.models import OpenAPI
from tests.integration.harnesses.rollout_world import World, until

from practicum.client import Client
from practicum.errors import Conflict, NotFound, RequestError
from practicum.harnesses.runner import RolloutLimits
from practicum.harnesses.wire import GroupBody, ResultsBody, RolloutBody
from practicum.store import Store, create_key, open_store

TASK: dict[str, Any] = {
    "task_id": "t",
    "instructions": ["Say lamp."],
    "harness": "asks",
    "graders": {"reads": {"word": "lamp"}},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "practicum.db") as opened:
        yield opened


@pytest.fixture
async def world(tmp_path: Path, store: Store) -> AsyncIterator[World]:
    async with World(tmp_path, store, limits=RolloutLimits(run=2, ready=2)) as opened:
        yield opened


@pytest.fixture
async def http(world: World, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    key = await asyncio.to_thread(create_key, store, "team", ["rollout"])
    async with httpx.AsyncClient(
        base_url=world.service.gateway, headers={"authorization": f"Bearer {key}"}, timeout=30, trust_env=False
    ) as client:
        yield client


async def test_submit_wait_and_collect(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/rollouts", json={**TASK, "num_samples": 3, "submission_key": "k"})
    assert made.status_code == 201
    group = GroupBody.model_validate_json(made.content)
    assert (group.task_id, len(group.rollouts), group.callback) == ("t", 3, "none")
    again = await http.post("/v1/rollouts", json={**TASK, "num_samples": 3, "submission_key": "k"})
    assert (again.status_code, again.json()["group_id"]) == (201, group.group_id)
    other = await http.post("/v1/rollouts", json={**TASK, "num_samples": 4, "submission_key": "k"})
    assert (other.status_code, other.json()["code"], other.json()["param"]) == (409, "key_reused", "submission_key")

    found: list[Any] = []
    page = None
    while page is None or not page.ended:
        answer = await http.get(f"/v1/rollouts/{group.group_id}/results", params={"wait_s": 20, "skip": len(found)})
        page = ResultsBody.model_validate_json(answer.content)
        found += page.data
    assert sorted(one.rollout.index for one in found) == [0, 1, 2]
    for one in found:
        assert (one.rollout.cause, one.rollout.reward, one.excluded) == ("finished", 1.0, None)
        (row,) = one.rows
        assert sum(row.mask) == len("Say lamp.") + 1 == len(row.completion_ids) == len(row.logprobs)
    answer = await http.get(f"/v1/rollouts/{group.group_id}")
    status = GroupBody.model_validate_json(answer.content)
    assert (status.ended, status.counts) == (True, {"ended": 3})
    slow = (await http.post("/v1/rollouts", json={**TASK, "harness": "sleeps"})).json()
    listed = (await http.get("/v1/rollouts")).json()
    assert (listed[0]["group_id"], listed[0]["ended"], listed[1]) == (slow["group_id"], False, answer.json())


async def test_cancel_and_continue(http: httpx.AsyncClient, store: Store) -> None:
    slow = (await http.post("/v1/rollouts", json={**TASK, "harness": "sleeps", "num_samples": 2})).json()
    one = slow["rollouts"][0]["rollout_id"]
    group = await http.post(f"/v1/rollouts/{slow['group_id']}/cancel", json={"rollout_id": one})
    assert [r["cause"] for r in group.json()["rollouts"]] == ["cancelled", None]
    group = await http.post(f"/v1/rollouts/{slow['group_id']}/cancel")
    assert [r["cause"] for r in group.json()["rollouts"]] == ["cancelled", "cancelled"]

    kept = (await http.post("/v1/rollouts", json={**TASK, "keep_open_s": 30})).json()
    path, rollout_id = f"/v1/rollouts/{kept['group_id']}", kept["rollouts"][0]["rollout_id"]
    await until(lambda: store.get_rollout(rollout_id).state == "open")
    body = {"rollout_id": rollout_id, "instruction": "Say desk.", "turn": 1}
    gone_on = await http.post(f"{path}/continue", json=body)
    assert RolloutBody.model_validate_json(gone_on.content).instructions == ["Say lamp.", "Say desk."]
    await until(lambda: store.get_rollout(rollout_id).turns_done == 2)
    assert (await http.post(f"{path}/continue", json={"rollout_id": rollout_id, "end": True})).status_code == 200
    (result,) = (await http.get(f"{path}/results", params={"wait_s": 20})).json()["data"]
    assert (result["rollout"]["output"], result["rollout"]["reward"]) == ("Say desk.", 1.0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({**TASK, "task_id": ""}, "task_id"),
        ({**TASK, "instructions": []}, "instructions"),
        ({**TASK, "instructions": "Say lamp."}, "instructions"),
        ({**TASK, "harness": "none"}, "harness"),
        ({**TASK, "graders": {"none": {}}}, "graders"),
        ({**TASK, "num_samples": 0}, "num_samples"),
        ({**TASK, "num_samples": True}, "num_samples"),
        ({**TASK, "num_samples": "3"}, "num_samples"),
        ({**TASK, "samples": 3}, "samples"),
        ({**TASK, "env": {"A": 1}}, "env.A"),
        ({**TASK, "timeouts": {"agent_s": 0}}, "timeouts.agent_s"),
        ({**TASK, "timeouts": {"agent_s": 10, "whole_s": 5}}, "timeouts.prepare_s"),
        ({**TASK, "keep_open_s": -1}, "keep_open_s"),
        ({**TASK, "callback_url": "http://example.com/"}, "callback_url"),
        ({**TASK, "files": {"../x": "y"}}, "files.../x"),
        ({**TASK, "workdir": "here"}, "workdir"),
        ({**TASK, "harness": "command", "options": {"comand": ["sh"]}}, "options.command"),
        ({"task_id": "t", "harness": "asks"}, "instructions"),
        ([], "body"),
        (None, "body"),
    ],
)
async def test_a_bad_body_is_a_400_that_names_the_field(http: httpx.AsyncClient, body: Any, param: str) -> None:
    answer = await http.post("/v1/rollouts", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    problem = answer.json()
    assert (problem["param"], problem["status"]) == (param, 400)
    assert problem["detail"] and problem["request_id"] and problem["code"]
    assert (await http.get("/v1/rollouts")).json() == []


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"task_id": NaN}', b'{"task_id": "\\ud800", "instructions": ["a"]}'])
async def test_odd_bytes_are_a_400(http: httpx.AsyncClient, raw: bytes) -> None:
    answer = await http.post("/v1/rollouts", content=raw, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


async def test_odd_text_in_files_comes_back(http: httpx.AsyncClient) -> None:
    made = await http.post("/v1/rollouts", json={**TASK, "instructions": ["Say \0 lamp \u2028."], "env": {"É": "é"}})
    assert made.json()["rollouts"][0]["instructions"] == ["Say \0 lamp \u2028."]


async def test_who_may_and_who_sees(http: httpx.AsyncClient, store: Store) -> None:
    group_id = (await http.post("/v1/rollouts", json=TASK)).json()["group_id"]
    paths = [("GET", ""), ("GET", f"/{group_id}"), ("GET", f"/{group_id}/results"), ("POST", f"/{group_id}/cancel")]
    for principal, scopes, expected in (
        ("team", ["sample", "feedback"], {403}),
        ("other", ["rollout"], {200, 404}),
        ("root", ["admin"], {200}),
    ):
        key = await asyncio.to_thread(create_key, store, principal, scopes)
        headers = {"authorization": f"Bearer {key}"}
        answers = [await http.request(verb, f"/v1/rollouts{path}", headers=headers) for verb, path in paths]
        assert {answer.status_code for answer in answers} == expected
    listed = await http.get("/v1/rollouts", headers={"authorization": "Bearer pk_wrong"})
    assert listed.status_code == 401
    assert (await http.get("/v1/rollouts/none/results")).json()["code"] == "not_found"


async def test_the_document_is_openapi_and_every_answer_is_in_it(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    OpenAPI.model_validate(document)
    assert document["openapi"].startswith("3.1")
    paths = document["paths"]
    assert set(paths) == {
        "/v1/rollouts",
        "/v1/rollouts/{group_id}",
        "/v1/rollouts/{group_id}/results",
        "/v1/rollouts/{group_id}/cancel",
        "/v1/rollouts/{group_id}/continue",
        "/v1/feedback",
        "/v1/feedback/{feedback_id}",
    }
    operations = [(path, verb, paths[path][verb]) for path in paths for verb in paths[path]]
    assert len({operation["operationId"] for _, _, operation in operations}) == len(operations) == 11
    for path, verb, operation in operations:
        success = next(one for status, one in operation["responses"].items() if status.startswith("2"))
        assert success["content"]["application/json"]["schema"], (path, verb)
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert ("requestBody" in operation) == (verb in ("post", "patch")), (path, verb)
    for name in references(document):
        assert name in document["components"]["schemas"]


async def test_the_client(world: World, store: Store) -> None:
    key = await asyncio.to_thread(create_key, store, "team", ["rollout"])

    def use() -> None:
        with Client(world.service.gateway, key) as client:
            group = client.submit_rollouts({**TASK, "num_samples": 2}, submission_key="k")
            assert (
                client.submit_rollouts({**TASK, "num_samples": 2}, submission_key="k")["group_id"] == group["group_id"]
            )
            results = list(client.rollout_results(group["group_id"]))
            assert sorted(one["rollout"]["index"] for one in results) == [0, 1]
            assert client.rollouts(group["group_id"])["ended"] is True
            kept = client.submit_rollouts({**TASK, "keep_open_s": 30})
            rollout_id = kept["rollouts"][0]["rollout_id"]
            client.continue_rollout(kept["group_id"], rollout_id, "Say desk.", 1)
            with pytest.raises(Conflict):
                client.continue_rollout(kept["group_id"], rollout_id, "Say bed.", 1)
            client.end_rollout(kept["group_id"], rollout_id)
            assert client.cancel_rollouts(kept["group_id"])["ended"]
            with pytest.raises(NotFound):
                client.rollouts("group_none")
            with pytest.raises(RequestError, match="no harness"):
                client.submit_rollouts({**TASK, "harness": "none"})

    await asyncio.to_thread(use)


def references(value: Any) -> set[str]:
    """Names of the schemas that a document points to."""
    text = json.dumps(value)
    return {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}

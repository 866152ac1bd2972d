"""Which session a call belongs to, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from practicum.errors import RequestError
from practicum.gateway.sessions import HARNESS_HEADERS, SessionOwners, named_session
from practicum.types.calls import ModelCall


def test_the_url_comes_before_headers_and_ours_before_the_harnesss() -> None:
    headers = {"x-practicum-session": "ours", "session-id": "theirs"}
    named = [named_session("url", headers), named_session(None, headers), named_session(None, {"session-id": "theirs"})]
    assert [(one.session_id, one.source) for one in named if one] == [
        ("url", "url"), ("ours", "header"), ("theirs", "harness"),
    ]  # fmt: skip
    assert named_session(None, {}) is None


@pytest.mark.parametrize("header", HARNESS_HEADERS)
def test_e9_every_listed_header_names_a_session(header: str) -> None:
    named = named_session(None, {header: "0199-ab"})
    assert named is not None and named.session_id == "0199-ab"


@pytest.mark.parametrize(
    "header", ["x-gemini-api-privileged-user-id", "x-codex-window-id", "x-initiator", "x-request-id", "user-agent"]
)
def test_e9_what_is_the_same_for_many_sessions_or_new_with_each_call_names_none(header: str) -> None:
    assert named_session(None, {header: "0199-ab"}) is None


@pytest.mark.parametrize("bad", ["", "a b", "a/b", "../x", "x" * 129, "-x", "a\nb", "é"])
def test_an_id_that_cannot_be_one_is_an_error_where_it_was_meant_for_us(bad: str) -> None:
    for url, headers in ((bad, {}), (None, {"x-practicum-session": bad})):
        with pytest.raises(RequestError, match="session id"):
            named_session(url, headers)
    assert named_session(None, {"session-id": bad}) is None


def call_of(principal: str) -> ModelCall:
    return ModelCall(
        call_id="c", session_id="s", principal=principal, kind="agent", status="complete", created_at=0.0,
        policy_version=0, model="m", request={},
    )  # fmt: skip


def test_an_id_belongs_to_whoever_used_it_first() -> None:
    owners = SessionOwners(lambda session_id: None)
    assert owners.claim("s", "anna") == "s"
    assert owners.claim("s", "ben") == "ben/s"
    assert owners.claim("s", "anna") == "s"


def test_the_owner_is_read_from_the_record_after_a_restart() -> None:
    owners = SessionOwners(lambda session_id: call_of("anna"))
    assert owners.claim("s", "ben") == "ben/s"
    assert owners.claim("s", "anna") == "s"


def test_a_bound_key_speaks_for_its_session_only() -> None:
    named = named_session("url", {"x-practicum-session": "ours", "session-id": "theirs"}, bound="rollout-7")
    assert named is not None and (named.session_id, named.source) == ("rollout-7", "key")


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "0199-ab"}'}}, "0199-ab"),
        ({"metadata": {"user_id": "user-7"}}, None),
        ({"metadata": {"user_id": "{broken"}}, None),
        ({"metadata": {"user_id": '["session_id"]'}}, None),
        ({"metadata": {"user_id": '{"session_id": 5}'}}, None),
        ({"metadata": None}, None),
        ({"client_metadata": {"session_id": "0199-cd"}, "prompt_cache_key": "other"}, "0199-cd"),
        ({"client_metadata": {"x": "y"}, "prompt_cache_key": "0199-ef"}, "0199-ef"),
        ({"prompt_cache_key": "the-same-for-all"}, None),
    ],
)
def test_e9_fields_of_the_body_name_a_session_where_headers_were_dropped(body: dict[str, Any], session: str) -> None:
    named = named_session(None, {}, body)
    assert (named.session_id if named else None) == session
    shown = named_session(None, {"session-id": "header"}, body)
    assert shown is not None and shown.session_id == "header"


@pytest.mark.parametrize(
    ("headers", "session", "agent"),
    [
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s", "a"),
        ({"x-claude-code-session-id": "s"}, "s", None),
        ({"session-id": "s", "thread-id": "s"}, "s", None),
        ({"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s"}, "s", "t"),
        ({"thread-id": "t", "x-codex-parent-thread-id": "s"}, "s", "t"),
        ({"x-session-id": "c", "x-parent-session-id": "s"}, "s", "c"),
        ({"x-session-id": "s", "x-session-affinity": "s"}, "s", None),
        ({"x-practicum-session": "mine", "x-practicum-agent": "b", "x-claude-code-agent-id": "a"}, "mine", "b"),
    ],
)
def test_e7_sub_agents_share_the_session_and_have_an_id(headers: dict[str, str], session: str, agent: str) -> None:
    named = named_session(None, headers)
    assert named is not None and (named.session_id, named.agent_id) == (session, agent)


def test_a_sub_agents_sub_agent_meets_the_others_in_the_first_ones_session() -> None:
    owners = SessionOwners(lambda session_id: None)
    child = named_session(None, {"x-session-id": "child", "x-parent-session-id": "top"})
    grandchild = named_session(None, {"x-session-id": "grand", "x-parent-session-id": "child"})
    assert child and grandchild
    assert owners.root(child, "anna") == "top"
    assert owners.root(grandchild, "anna") == "top"
    assert owners.root(grandchild, "ben") == "child", "another principal's ids mean nothing"

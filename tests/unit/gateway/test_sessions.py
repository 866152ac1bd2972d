"""Which session a call belongs to, and whose it is."""

from __future__ import annotations

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

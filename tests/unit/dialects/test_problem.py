"""Problem documents: the standard's members, ours, and nothing of what an unexpected error holds."""

from practicum.dialects.problem import problem
from practicum.errors import Conflict, RequestError


def test_an_error_of_the_tree() -> None:
    error = RequestError("The body is wrong.", hint="Mend it.", param="messages")
    assert problem(error, "req_1") == {
        "type": "urn:practicum:problem:invalid_request",
        "title": "A request's content; `param` names the field.",
        "status": 400,
        "detail": "The body is wrong.",
        "code": "invalid_request",
        "hint": "Mend it.",
        "param": "messages",
        "request_id": "req_1",
    }


def test_a_code_of_its_own_and_no_hint() -> None:
    document = problem(Conflict("No.", code="already_retracted"), "req_1")
    assert (document["code"], document["status"]) == ("already_retracted", 409)
    assert "hint" not in document
    assert "param" not in document


def test_an_unexpected_error_says_nothing_of_itself() -> None:
    document = problem(RuntimeError("password=hunter2"), "req_1")
    assert (document["status"], document["code"], document["request_id"]) == (500, "internal_error", "req_1")
    assert "hunter2" not in str(document)

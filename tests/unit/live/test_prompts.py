"""What the learner samples anew of a recorded call."""

from __future__ import annotations

from practicum.live.prompts import PromptBook
from practicum.renderers import ByteTokenizer, Renderer
from practicum.types.calls import ModelCall


def test_the_callers_format_does_not_bind_the_learner() -> None:
    body = {
        "model": "practicum",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.5,
        "response_format": {"type": "json_object"},
    }
    call = ModelCall(
        call_id="c", session_id="s", principal="p", kind="agent", status="complete", created_at=0.0,
        policy_version=0, model="practicum", request=body,
    )  # fmt: skip
    params = PromptBook(Renderer(ByteTokenizer()), 7).params(call)
    assert (params.constraint, params.temperature, params.max_tokens) == (None, 0.5, 7)

"""The feedback routes' bodies, as the OpenAPI document shows them. `routes.py` reads and checks requests itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from practicum.types.feedback import FORM_MEANING, FeedbackForm, TargetKind


class FeedbackBody(BaseModel):
    """One item as it stands."""

    model_config = ConfigDict(extra="forbid")

    id: str
    object: Literal["feedback"]
    feedback_id: str
    target_kind: TargetKind
    target_id: str
    form: FeedbackForm
    value: bool | int | float | str
    source: str
    created_at: float
    updated_at: float
    revision: int
    retracted: bool


class FeedbackPage(BaseModel):
    """A page of items."""

    model_config = ConfigDict(extra="forbid")

    object: Literal["list"]
    data: list[FeedbackBody]
    first_id: str | None
    last_id: str | None
    has_more: bool


def _request(description: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "description": description,
        "properties": properties,
        "additionalProperties": False,
        **more,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


_VALUES: dict[str, Any] = {
    "score": {"type": "number"},
    "thumb": {"enum": ["up", "down"]},
    "comment": {"type": "string"},
    "correction": {"type": "string"},
    "outcome": {"type": ["boolean", "number", "string"]},
}
_NAME = {"type": "string", "minLength": 1}

GIVE = _request(
    "Exactly one of `call_id` and `session_id`, and exactly one form.",
    {
        **dict.fromkeys(("call_id", "session_id", "user", "feedback_id"), _NAME),
        **{form: {**_VALUES[form], "description": meaning} for form, meaning in FORM_MEANING.items()},
    },
)
EDIT = _request(
    "The item's new value.",
    {"value": {"type": ["boolean", "number", "string"]}, "user": _NAME},
    required=["value"],
)

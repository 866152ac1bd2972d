"""What the dialects share about reasoning: how it is sealed for callers who carry it unread, and how it is controlled.

Providers hand out an opaque text beside an answer's reasoning (a signature, encrypted content) that harnesses send back
where they drop or may not see the reasoning itself. Ours is no secret: base64 of a small JSON object with the call's id
and, where the caller is not given the reasoning openly, the reasoning. What is sent back openly counts before it.

It must not know any one provider, nor which switches a model's template has.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Literal

# How a caller gets the reasoning: as text, sealed only, or not at all because it did not ask for any.
Shown = Literal["text", "sealed", "hidden"]

_KEY = "practicum_reasoning"
_THINK = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)


def seal(call_id: str, text: str = "") -> str:
    """The opaque text for one piece of reasoning of a call, in the standard base64 alphabet."""
    return base64.b64encode(json.dumps({_KEY: text, "call_id": call_id}).encode()).decode()


def unseal(sealed: object) -> str:
    """The reasoning in an opaque text of ours; empty for anything else, whatever it is. Both base64 alphabets do."""
    if not isinstance(sealed, str):
        return ""
    try:
        opened = json.loads(base64.b64decode(sealed.translate(str.maketrans("-_", "+/")), validate=True))
    except (ValueError, RecursionError):
        return ""
    text = opened.get(_KEY) if isinstance(opened, dict) else None
    return text if isinstance(text, str) else ""


def tagged(text: str) -> str | None:
    """The reasoning in a text that is one `<think>` block and nothing else, which is how some harnesses replay it."""
    found = _THINK.fullmatch(text)
    return found.group(1).strip() if found and "think>" not in found.group(1) else None


def switches(*, on: bool | None = None, effort: object = None, budget: object = None) -> dict[str, Any]:
    """A request's wishes about reasoning under the names that chat templates use for them.

    Args:
        on: whether to reason at all; None where the request does not say.
        effort: a word; `none` means not to, any other implies that reasoning is wanted.
        budget: most tokens of reasoning; 0 means none.
    """
    budget = budget if type(budget) is int else None
    if effort == "none" or budget == 0:
        on = False
    wishes: dict[str, Any] = {}
    if isinstance(effort, str) and effort and effort != "none":
        on = True if on is None else on
        wishes["reasoning_effort"] = effort
    if budget is not None and budget > 0:
        on = True if on is None else on
        wishes["thinking_budget"] = budget
    return wishes if on is None else {"enable_thinking": on, "thinking": on, **wishes}

"""Text that a harness puts into the system message and that changes between calls without meaning anything.

One table, `RULES`. Such text is blanked before two conversations are compared, so that it forks no episode; what was
served stays as it was served, with the text that came first. A rule that is `not_prompt` names what the provider reads
itself and no model should see: where it is a block of its own, it is left out of the prompt. What no rule names
counts, and a change of it forks. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VolatileRule:
    """What it matches in a system text, and where that was seen."""

    name: str
    pattern: re.Pattern[str]
    not_prompt: bool = False
    evidence: str


RULES: tuple[VolatileRule, ...] = (
    VolatileRule(
        name="claude_code_billing_line",
        pattern=re.compile(r"^x-anthropic-billing-header:[^\n]*\n*"),
        not_prompt=True,
        evidence="2.1.197 and 2.1.332: a hash that differs for title, sub-agent and post-compaction calls",
    ),
    VolatileRule(
        name="copilot_clock",
        pattern=re.compile(r"<current_datetime>[^<]*</current_datetime>"),
        evidence="the time of the call; listed for Copilot, not in the recordings",
    ),
)
_SYSTEM_FIELDS = ("system", "instructions", "systemInstruction", "system_instruction")
_SYSTEM_ROLES = ("system", "developer")


def without_volatile(system_text: str) -> str:
    """A system text for comparison."""
    for rule in RULES:
        system_text = rule.pattern.sub("", system_text)
    return system_text


def is_no_prompt(block: str) -> bool:
    """Whether a block of a system message is something that only the provider reads."""
    return any(rule.not_prompt and rule.pattern.fullmatch(block) for rule in RULES)


def volatile_in(body: dict[str, Any]) -> list[str]:
    """Names of the rules that a request on record meets."""
    texts = [text for field in _SYSTEM_FIELDS for text in _texts(body.get(field))]
    for message in (body.get("messages"), body.get("input")):
        for entry in message if isinstance(message, list) else ():
            if isinstance(entry, dict) and entry.get("role") in _SYSTEM_ROLES:
                texts += _texts(entry.get("content"))
    return [rule.name for rule in RULES if any(rule.pattern.search(text) for text in texts)]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)

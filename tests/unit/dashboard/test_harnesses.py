"""The report per harness as it is printed."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from practicum.dashboard import harnesses_json, show_harnesses
from practicum.dashboard.harnesses import NO_CALLS
from practicum.episodes.summary import HarnessSummary, LogprobGap

FOUND = HarnessSummary(
    harness="Claude\x1b[31m Code",
    calls=1234,
    kinds={"agent": 1200, "auxiliary": 34},
    side_calls={"claude_code_title": 34},
    sessions=12,
    session_sources={"harness:x-claude-code-session-id": 1234},
    agents=3,
    episodes=15,
    rows=15,
    sampled_tokens=9000,
    trained_tokens=8000,
    merge_ratio=80.0,
    forks={"new_conversation": 12, "branched": 3},
    refusals={"kind is auxiliary: claude_code_title": 34},
    volatile={"claude_code_billing_line": 1234},
    cut_by_default=56,
    logprob_gap=None,
)


def printed(*found: HarnessSummary) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_harnesses(found, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_summary_shows_every_count_with_its_meaning() -> None:
    text = printed(FOUND)
    for words in (
        "agent 1,200, auxiliary 34", "12, with 3 sub-agents", "80.0 calls a row", "9,000 sampled, 8,000 trained",
        "a second request went on from the same answer", "asks for the session's title", "1,234 calls",
        "kind is auxiliary: claude_code_title", "not computed; --recompute asks the engine",
        "56 answers whose request names no limit: see gateway.default_max_tokens",
    ):  # fmt: skip
        assert words in text, words
    assert "\x1b" not in text
    assert "cut short" not in printed(replace(FOUND, cut_by_default=0))


def test_a_gap_is_shown_with_its_size() -> None:
    text = printed(replace(FOUND, logprob_gap=LogprobGap(tokens=10, largest=0.00012, mean=0.00003)))
    assert "largest 1.20e-04, mean 3.00e-05 over 10 trained tokens" in text


def test_nothing_on_record_says_what_to_do() -> None:
    assert printed() == NO_CALLS + "\n"
    assert json.loads(harnesses_json([]))["harnesses"] == []


def test_json_has_the_counts_and_the_meanings() -> None:
    shown = json.loads(harnesses_json([replace(FOUND, logprob_gap=LogprobGap(tokens=1, largest=math.inf, mean=1.0))]))
    (one,) = shown["harnesses"]
    assert (one["calls"], one["logprob_gap"]) == (1234, {"tokens": 1, "largest": None, "mean": 1.0})
    assert set(shown["fork_meaning"]) == {"new_conversation", "branched"} and all(shown["fork_meaning"].values())
    assert "title" in shown["side_call_meaning"]["claude_code_title"]

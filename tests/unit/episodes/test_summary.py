"""The counts of the report per harness, checked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from conversation import call, said, user

from practicum.episodes.link import ForkReason
from practicum.episodes.summary import FORKS, LogprobGap, of_another_model, recomputed_gaps, summarise, versions_of
from practicum.renderers import ByteTokenizer, Renderer
from practicum.types.calls import ModelCall

BILLED = {"system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.4e6;"}], "messages": []}


def session() -> list[ModelCall]:
    """A title, two turns, a retry of the second that was not used, and a turn of a sub-agent."""
    title = call("t", [user("title?")], said("T"), kind="auxiliary", kind_reason="claude_code_title", harness="A",
                 request=BILLED)  # fmt: skip
    first = call("c1", [user("a")], said("x"), prompt=(1,), ids=(1000,), episode_id="e", harness="A",
                 fork_reason="new_conversation", session_source="harness:session-id")  # fmt: skip
    asked = [user("a"), said("x"), user("b")]
    second = call("c2", asked, said("y"), prompt=(1, 1000, 3), ids=(1001, 1002), episode_id="e", parent_call_id="c1",
                  harness="A", versions=(3, 4), temperature=0.0)  # fmt: skip
    again = call("c3", asked, said("Y"), prompt=(1, 1000, 3), ids=(1003,), kind="retry", parent_call_id="c1",
                 kind_reason="same_prompt_again", harness="A", episode_id="e3")  # fmt: skip
    helper = call("c4", [user("do")], said("d"), prompt=(9,), ids=(1004,), agent_id="sub", harness="A", episode_id="e4")
    return [title, first, second, again, helper]


def test_counts_of_one_session() -> None:
    (found,) = summarise(session())
    assert (found.harness, found.calls, found.sessions, found.agents) == ("A", 5, 1, 1)
    assert found.kinds == {"agent": 3, "auxiliary": 1, "retry": 1}
    assert found.side_calls == {"claude_code_title": 1, "same_prompt_again": 1}
    assert (found.episodes, found.rows, found.sampled_tokens, found.trained_tokens) == (2, 2, 7, 4)
    assert found.merge_ratio == 1.5 and found.logprob_gap is None
    assert found.forks == {"new_conversation": 2}
    assert found.refusals == {
        "kind is auxiliary: claude_code_title": 1, "kind is retry: same_prompt_again": 1,
    }  # fmt: skip
    assert found.session_sources == {"not recorded": 4, "harness:session-id": 1}


def test_w22_blanked_text_is_visible_in_the_report() -> None:
    (found,) = summarise(session())
    assert found.volatile == {"claude_code_billing_line": 1}


def test_harnesses_are_counted_apart() -> None:
    other = call("o", [user("a")], said("x"), session_id="s2", harness="B")
    assert [(one.harness, one.calls, one.rows) for one in summarise([*session(), other])] == [("A", 5, 2), ("B", 1, 1)]
    assert summarise([]) == []


class Scorer:
    """Knows the first token as it was, and puts the others off by a tenth for each version."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[int], int, float]] = []

    async def logprobs(
        self, prompt_ids: Sequence[int], completion_ids: Sequence[int], *, version: int, temperature: float = 1.0
    ) -> list[float]:
        self.asked.append((list(prompt_ids), list(completion_ids), version, temperature))
        return [-0.5 if token == 1000 else -0.5 - version / 10 for token in completion_ids]


async def test_gaps_are_taken_where_each_version_sampled() -> None:
    scorer = Scorer()
    gaps = await recomputed_gaps(session(), scorer)
    assert scorer.asked == [
        ([1], [1000], 3, 1.0), ([1, 1000, 3], [1001], 3, 1.0), ([1, 1000, 3, 1001], [1002], 4, 1.0),
        ([9], [1004], 3, 1.0),
    ]  # fmt: skip
    assert gaps["c1"] == LogprobGap(tokens=1, largest=0.0, mean=0.0)
    assert math.isclose(gaps["c2"].largest, 0.4) and math.isclose(gaps["c2"].mean, 0.35)
    (found,) = summarise(session(), gaps)
    assert found.logprob_gap is not None and found.logprob_gap.tokens == 4
    assert math.isclose(found.logprob_gap.mean, (0.0 + 0.3 + 0.4 + 0.3) / 4)
    assert versions_of(session()) == [3, 4]


async def test_what_a_dropped_version_sampled_has_no_gap() -> None:
    scorer = Scorer()
    gaps = await recomputed_gaps(session(), scorer, dropped={3})
    assert scorer.asked == [([1, 1000, 3, 1001], [1002], 4, 1.0)]
    assert set(gaps) == {"c2"} and gaps["c2"].tokens == 1


async def test_calls_that_are_left_out_have_no_gap() -> None:
    scorer = Scorer()
    assert set(await recomputed_gaps(session(), scorer, without={"c1", "c4"})) == {"c2"}


def test_a_call_of_another_model_is_known_by_its_tokens() -> None:
    ours = call("o", [user("a")], said("é!"), ids=(0xC3, 0xA9, ord("!"), ByteTokenizer.END), text="é!")
    cut = replace(ours, call_id="cut", completion_ids=(ord("a"), 0xC3), text="a")
    other = replace(ours, call_id="other", completion_ids=(ord("a"), ord("b")), text="Sure, here it is")
    foreign = replace(ours, call_id="foreign", completion_ids=(31999,), text="Sure")
    unknown = [replace(other, call_id="u1", text=""), replace(other, call_id="u2", status="aborted")]
    assert of_another_model([ours, cut, other, foreign, *unknown], Renderer(ByteTokenizer())) == {"other", "foreign"}


def test_answers_that_the_servers_own_limit_cut_are_counted() -> None:
    asked = {"model": "practicum", "messages": [{"role": "user", "content": "a"}]}
    cut = call("cut", [user("a")], said("x"), finish_reason="length", request=asked)
    limited = replace(cut, call_id="limited", request={**asked, "max_tokens": 2})
    raw = replace(cut, call_id="raw", dialect="openai_completions", request={"model": "practicum", "prompt": "a"})
    ended = replace(cut, call_id="ended", finish_reason="stop")
    failed = replace(cut, call_id="failed", status="aborted")
    unread = replace(cut, call_id="unread", dialect="none")
    (found,) = summarise([cut, limited, raw, ended, failed, unread])
    assert found.cut_by_default == 1


def test_every_fork_is_explained() -> None:
    assert set(ForkReason.__args__) <= set(FORKS) and all(FORKS.values())  # type: ignore[attr-defined]

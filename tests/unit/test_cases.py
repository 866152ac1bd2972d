"""Each case has a test that names it: `test_w18_…`, `test_e3_…`, `test_r3_…`, `test_l1_l2_…`.

The cases are faults that users of other systems reported: on the wire (W), in the making of episodes (E), with rewards
and advantages (R), with the loss and the update (L). This table is what each one asks for; the tests are found by their
names.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CASES = {
    "w1": "all sampled ids of a streamed tool call are on record",
    "w2": "every dialect is captured, with its reason for stopping",
    "w3": "a call without token ids is refused for training",
    "w4": "logprobs that do not align are refused, never padded",
    "w5": "a malformed call is text, and its tokens are kept",
    "w6": "tool calls of the history are in the ids",
    "w7": "streams have the provider's events and real usage",
    "w8": "the caller's own auth header identifies it",
    "w9": "reasoning that was edited or dropped forks only where served text changed",
    "w10": "unknown fields are kept, meaning-changing ones refused by name",
    "w11": "images for a text model are a clear 400",
    "w12": "counts, probes and titles are answered and never trained on",
    "w13": "a disconnect ends the generation",
    "w14": "an idle connection outlives the clients' pools",
    "w15": "silence is bridged",
    "w16": "an overflow has the provider's own code",
    "w17": "an engine's crash or hang is named and can be retried",
    "w18": "of duplicates only the consumed answer trains",
    "w19": "no default key, nothing answers without one",
    "w20": "token ids do not leave unasked",
    "w21": "tool names are unchanged both ways",
    "w22": "a line that changes every turn is blanked by a named rule, and shown",
    "e1": "a template that drops old text changes nothing that was served",
    "e2": "re-rendered tools are the same, changed tools fork",
    "e3": "an answer replayed in any form goes on with the episode",
    "e4": "a used compaction and the fresh context train, a rejected one does not",
    "e5": "a merged row is not cut to one turn's length",
    "e6": "an episode without a sampled token is left out with a reason",
    "e7": "retry, best of n and sub-agents are three kinds",
    "e8": "what is too long keeps its beginning or is refused",
    "e9": "sessions are inferred, shown, and can be overridden",
    "r1": "a group of one has no signal, and the version does not advance",
    "r2": "every form of reward has one meaning or a clear error, and none becomes 0",
    "r3": "a missing reward is out of the baseline",
    "r4": "what is masked is out before the statistics are taken",
    "r5": "one outcome for each rollout, grouped by task",
    "r6": "groups are formed by id and never by text",
    "r7": "a failed grader and a failed agent are told apart, and neither is a 0",
    "r8": "a judge without a score is asked again, then there is none",
    "r9": "whether dead groups feel the KL is one switch",
    "r10": "a group's spread is its own, largest minus smallest",
    "r11": "a group of one gives 0 and not NaN",
    "l1": "splits, order, padding and packing change nothing",
    "l2": "numerator and denominator have the same mask; all masked is 0",
    "l3": "the finish reason decides what is truncated",
    "l4": "the finish reason reaches the overlong filter",
    "l5": "ratios are of raw tempered logprobs",
    "l6": "no overflow",
    "l7": "the ratio is to the sampler's stored logprobs",
    "l8": "what was not sampled gets no gradient",
    "l9": "rows of one rollout share its advantage and weigh by their tokens",
    "l10": "a retried call changes nothing",
    "l12": "a sampler that holds other weights is noticed",
    "l15": "the teacher sees all of its prompt over the same completion",
    "l16": "a grader that hangs is killed",
    "l17": "sandboxes leave nothing behind",
}
TESTS = Path(__file__).parents[1]


@cache
def named_tests() -> dict[str, list[str]]:
    """Names of test functions by the cases in them."""
    found: dict[str, list[str]] = {case: [] for case in CASES}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for case in re.findall(r"(?<=_)[werl]\d+(?=_)", node.name):
                    found.setdefault(case, []).append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test_that_names_it(case: str) -> None:
    assert named_tests()[case], f"{case.upper()}: {CASES[case]}"


def test_no_test_names_a_case_that_there_is_not() -> None:
    assert set(named_tests()) == set(CASES)

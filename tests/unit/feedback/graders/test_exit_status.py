"""Checks in the sandbox's final state, and rewards as text. A check that fails is not a zero (R2, R7)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.feedback.graders.left_behind import grade, left, rewards

from practicum.errors import UsageError
from practicum.feedback.graders import GraderSettings, graders
from practicum.feedback.graders.grader import Failed, parse_rewards
from practicum.types.outcomes import Outcome


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1", {"reward": 1.0}),
        (" 0.25\n", {"reward": 0.25}),
        ("257", {"reward": 257.0}),
        ("123456789.123", {"reward": 123456789.123}),
        ('{"reward": 0, "style": -2.5}', {"reward": 0.0, "style": -2.5}),
    ],
)
def test_r2_a_number_or_named_numbers_are_a_reward(text: str, want: Mapping[str, float]) -> None:
    assert parse_rewards(text) == want


@pytest.mark.parametrize(
    "text",
    [
        *("", "NaN", "nan", "inf", "-Infinity", "1e999", "true", "null", '"1"', "good job", "[1]", "{}", '{"a": NaN}'),
        *('{"a": true}', '{"a": "1"}', "1 2", "9" * 400, "[" * 100_000),
    ],
)
def test_r2_anything_else_is_a_failure_and_never_a_zero(text: str) -> None:
    with pytest.raises(Failed):
        parse_rewards(text)


async def test_an_exit_status_judges_the_final_files(tmp_path: Path) -> None:
    async with left(tmp_path) as end:
        assert rewards(await grade("exit_status", end, command=["grep", "-q", "hi", "out.txt"])) == {"reward": 1.0}
        assert rewards(await grade("exit_status", end, command=["grep", "-q", "ho", "out.txt"])) == {"reward": 0.0}
        script = 'test "$WANT" = "$(cat out.txt)" && . ./more.sh'
        asked = {"script": script, "files": {"more.sh": "exit 0"}, "env": {"WANT": "hi"}}
        await end.sandbox.write("more.sh", "exit 3")  # what the agent left under that name is replaced
        assert rewards(await grade("exit_status", end, **asked)) == {"reward": 1.0}


async def test_a_script_may_print_one_or_several_rewards(tmp_path: Path) -> None:
    async with left(tmp_path) as end:
        printed = {"reward": "printed"}
        said = await grade("exit_status", end, script="echo log; echo 0.75", **printed)
        assert said == [Outcome(name="reward", reward=0.75, by="exit_status")]
        both = """echo '{"tests": 0.5, "reward": 1, "size": 3}'"""
        assert list(rewards(await grade("exit_status", end, script=both, **printed))) == ["reward", "tests", "size"]
        said = await grade("exit_status", end, script=both, main="size", **printed)
        assert (said[0].name, said[0].reward) == ("size", 3.0)
        assert rewards(await grade("exit_status", end, script="""echo '{"only": 2}'""", **printed)) == {"only": 2.0}
        for number in (7.0, -0.5, 1e6):  # any finite number, as it is
            assert rewards(await grade("exit_status", end, script=f"echo {number}", **printed)) == {"reward": number}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"command": ["no-such-interpreter", "x"]}, "could not be started"),
        ({"script": "no-such-program"}, "status 127"),
        ({"script": "kill -SEGV $$"}, "status 139"),
        ({"script": "sleep 60", "timeout_s": 0.3}, "longer than 0.3 s"),
        ({"script": "echo good job", "reward": "printed"}, "is no reward"),
        ({"script": "echo NaN", "reward": "printed"}, "no finite number"),
        ({"script": "true", "reward": "printed"}, "printed no reward"),
        ({"script": "echo 1; exit 2", "reward": "printed"}, "status 2"),
        ({"script": """echo '{"a": 1, "b": 2}'""", "reward": "printed"}, "no reward named 'reward'"),
    ],
)
async def test_r7_a_check_that_fails_is_no_zero(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    async with left(tmp_path) as end:
        (said,) = await grade("exit_status", end, **options)
        assert said.reward is None and reason in said.reason
        (said,) = await grade("exit_status", end, **options, when_failed=-1.0)
        assert said.reward == -1.0 and reason in said.reason


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"command": ["a"], "script": "b"}, {"script": "x", "typo": 1}, {"script": "x", "timeout_s": 0}),
        *({"script": "x", "when_failed": float("nan")}, {"command": "not a list"}),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="option"):
        graders(GraderSettings())["exit_status"](options)

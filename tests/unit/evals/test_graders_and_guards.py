"""Graders are the team's code: a failure names the grader and is never a zero. Guards see loops and empty answers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from practicum.errors import ConfigError, PracticumError
from practicum.evals.graders import Answer, grade, load_graders
from practicum.evals.guards import load_choices, on_topic, own_spans, well_formed
from practicum.types.local import ScoreRequest

ANSWER = Answer(text="Yes.", finish_reason="stop", question="Is it open?")


def test_graders_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("GRADERS = {'short': lambda a: len(a.text) < 9, 'half': lambda a: 0.5, 'na': lambda a: None}")
    assert grade(load_graders(file), ANSWER) == {"short": 1.0, "half": 0.5}


def test_a_file_without_a_table_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1")
    with pytest.raises(ConfigError, match="no table GRADERS"):
        load_graders(file)
    with pytest.raises(ConfigError, match="not a file"):
        load_graders(tmp_path / "missing.py")


def test_r7_a_grader_that_fails_is_not_a_zero() -> None:
    def broken(answer: Answer) -> bool:
        raise ZeroDivisionError("by zero")

    with pytest.raises(PracticumError, match="Grader broken raised ZeroDivisionError"):
        grade({"broken": broken}, ANSWER)


def test_a_verdict_out_of_range_is_refused() -> None:
    with pytest.raises(PracticumError, match=r"returned 7.0"):
        grade({"odd": lambda answer: 7}, ANSWER)
    with pytest.raises(PracticumError, match="returned nan"):
        grade({"nan": lambda answer: float("nan")}, ANSWER)


def test_well_formed() -> None:
    assert well_formed("Your parcel is on its way.")
    assert not well_formed("Hm.")
    assert not well_formed("we are sorry " * 5)


def test_the_regression_suite_that_ships_is_sound() -> None:
    items = load_choices(None)
    assert len(items) >= 100
    assert all(len(set(item.options)) == 4 and 0 <= item.answer < 4 for item in items)
    positions = [sum(item.answer == place for item in items) for place in range(4)]
    assert max(positions) - min(positions) <= 4


def test_a_broken_suite_names_its_form(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text('{"id": "x"}')
    with pytest.raises(ConfigError, match="cannot be read"):
        load_choices(file)


class Echoes:
    """A policy under which a token is likely after a prompt that holds it; ids over 90 are likelier after prompt 2."""

    def generate(self, *_: object, **__: object) -> list[object]:
        raise AssertionError

    def score(self, requests: Sequence[ScoreRequest], **_: object) -> list[tuple[float, ...]]:
        return [
            tuple(
                -1.0 if token in request.prompt_ids else -5.0 if token < 90 or request.prompt_ids == (2,) else -50.0
                for token in request.completion_ids
            )
            for request in requests
        ]


def test_what_most_answers_end_or_begin_with_says_nothing_about_the_question() -> None:
    sign = (91, 92, 0)
    answers = [(1, 7, *sign), (8, 2, *sign), (7, 8, *sign), (4, 9, 8), sign]
    assert own_spans(answers) == [(0, 2), (0, 2), (0, 2), (0, 3), (0, 0)]
    prompts = [(1,), (2,), (3,), (4,), (5,)]
    assert on_topic(Echoes(), prompts, answers, 0) == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert own_spans([(91, 1, 5), (91, 2, 6), (91, 3, 7), (4,)]) == [(1, 3), (1, 3), (1, 3), (0, 1)]


def test_one_answer_to_everything_is_off_topic() -> None:
    assert on_topic(Echoes(), [(1,), (2,), (3,)], [(1, 2, 3, 0)] * 3, 0) == [0.0, 0.0, 0.0]
    assert on_topic(Echoes(), [(1,)], [(1, 0)], 0) == []

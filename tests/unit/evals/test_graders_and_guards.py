"""Graders are the team's code: a failure names the grader and is never a zero. Guards see loops and empty answers."""

from pathlib import Path

import pytest

from practicum.errors import ConfigError, PracticumError
from practicum.evals.graders import Answer, grade, load_graders
from practicum.evals.guards import load_choices, well_formed

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

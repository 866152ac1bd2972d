from __future__ import annotations

import pytest

from practicum.environments.shell import KINDS, command_in, jobs


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("rm a.txt", "rm a.txt"),
        ("  $ rm a.txt \n", "rm a.txt"),
        ("`rm a.txt`", "rm a.txt"),
        ("```bash\nrm a.txt\n```", "rm a.txt"),
        ("I would say:\n```\nrm a.txt\nls\n```\nand no more.", "rm a.txt\nls"),
        ("```\nrm a.txt\n```\nor\n```\nrm b.txt\n```", None),
        ("rm a.txt\nrm b.txt", None),
        ("```\n\n```", None),
        ("", None),
    ],
)
def test_the_command_of_an_answer(text: str, command: str | None) -> None:
    assert command_in(text) == command


def test_jobs_come_out_the_same_and_those_that_judge_share_no_name_and_no_word_with_those_that_teach() -> None:
    train, heldout = jobs("train", 70), jobs("heldout", 70)
    assert train == jobs("train", 70) and train != jobs("train", 70, edition=1)
    assert len({task.task_id for task in [*train, *heldout, *jobs("train", 70, edition=1)]}) == 210

    def said(tasks: list) -> set[str]:  # type: ignore[type-arg]
        return {word for task in tasks for pair in task.options["task"]["after"].items() for word in pair}

    assert said(train).isdisjoint(said(heldout))
    assert [task.task_id.split("-command-")[1].rsplit("-", 2)[0] for task in train[:7]] == list(KINDS)


def test_a_job_of_two_steps_has_two_turns_and_what_must_be_seen_is_not_in_the_question() -> None:
    for task in jobs("train", 70):
        wanted = task.options["task"]
        assert task.options["max_turns"] == 1 + bool(wanted["look"])
        assert not wanted["look"] or wanted["look"] not in wanted["ask"]
        assert {path: text.strip() for path, text in task.files.items()} != wanted["after"]


def test_a_kind_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="juggle"):
        jobs("train", 1, kinds=["juggle"])

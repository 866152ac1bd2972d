"""Rollouts and their rows, and the advantages that an algorithm makes of a group's rewards."""

from practicum.algorithms.group import Graded
from practicum.algorithms.table import algorithm
from practicum.types.episodes import TrainingRow


def row(name: str, mask: tuple[bool, ...] = (True, True), *, temperature: float = 1.0) -> TrainingRow:
    return TrainingRow(
        row_id=name,
        episode_id=name,
        session_id=name,
        prompt_ids=(1, 2),
        completion_ids=tuple(range(3, 3 + len(mask))),
        mask=mask,
        logprobs=tuple(-0.5 if own else None for own in mask),
        versions=tuple(4 if own else None for own in mask),
        temperature=temperature,
        call_ids=(name,),
    )


def rollout(name: str, reward: float | None, group: object = "task", rows: tuple[TrainingRow, ...] | None = None,
            cause: str = "") -> Graded:  # fmt: skip
    return Graded(rollout_id=name, group=str(group), reward=reward, rows=(row(name),) if rows is None else rows,
                  cause=cause)  # fmt: skip


def advantages(rewards: list[float | None], name: str = "dppo", **options: object) -> list[float | None]:
    """A of one group's rollouts; None for one that is left out."""
    made = algorithm(name, options).batch([rollout(str(place), reward) for place, reward in enumerate(rewards)])
    found = {each.row_id: each.advantages[0] for each in made.streams[0].rows if each.advantages}
    return [found.get(str(place)) for place in range(len(rewards))]

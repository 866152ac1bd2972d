"""Tasks from reasoning-gym's generators, scored by the generator's own `score_answer`.

    TRAIN = tasks("chain_sum", 64, config={"max_terms": 3}, max_tokens=24)
    HELDOUT = tasks("chain_sum", 32, split="heldout", config={"max_terms": 3}, max_tokens=24)

What is in one split is never in the other, whatever the seeds and sizes: a question's digest decides where it belongs.
(The generators add the index to the seed, so that two neighbouring seeds give nearly the same items.) A question that
comes twice is taken once.

An item travels in its task as JSON that gives back tuples and keys as they were; one that JSON cannot hold is made
anew from seed and index where it is scored, and compared. Importing this module needs the extra: its process has the
library loaded before a rollout starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Unpack

from practicum.environments.tasks import Settings, single_turn
from practicum.errors import MissingExtra, UsageError
from practicum.types.rollouts import Task

try:
    import reasoning_gym
    from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer
except ImportError as error:
    raise MissingExtra(
        f"reasoning-gym is not installed ({error}).", hint="Install it: pip install 'practicum[reasoning-gym]'"
    ) from error

Split = Literal["train", "heldout"]
_HELDOUT_SHARE = 4  # one question in so many is held out
_TRIES = 40  # items looked at for each one wanted
# Some generators draw as many items as this at once: the same number for all, or item 3 of 10 were another than of 20.
_SIZE = 20_000


def tasks(
    family: str,
    size: int,
    *,
    data_seed: int = 0,
    split: Split = "train",
    answer: Literal["text", "tags"] = "text",
    config: Mapping[str, Any] | None = None,
    prompt: str = "{question}",
    **settings: Unpack[Settings],
) -> list[Task]:
    """`size` single-turn tasks of one family, the same ones for the same arguments.

    Args:
        family: a generator's name, as `reasoning_gym.create_dataset` takes it.
        size: how many.
        data_seed: the generator's; items that are asked for later follow on from those before.
        split: which side of the split.
        answer: what is scored: the whole `text`, white space around it aside; or what stands in <answer> `tags`, which
            the library's own system prompt then asks for, unless `system` is given.
        config: the generator's own settings; JSON.
        prompt: the user's message, with {question} in it.
        settings: as `single_turn` takes them: `max_tokens`, `temperature`, `system`, `seed` of the calls and so on.

    Raises: MissingExtra; UsageError for a family or a setting that does not exist, and for a family that has too few
    different questions.
    """
    if "{question}" not in prompt:
        raise UsageError("`prompt` must hold {question}.", param="prompt")
    if answer == "tags":
        settings.setdefault("system", SYSTEM_PROMPTS["default"])
    known: dict[str, Any] = {**(config or {}), "seed": data_seed, "size": _SIZE}
    dataset = _dataset(family, known)
    made: list[Task] = []
    seen: set[str] = set()
    for index in range(min(size * _TRIES, _SIZE)):
        if len(made) == size:
            break
        item = dataset[index]
        question = str(item["question"])
        if question in seen or _side(question) != split:
            continue
        seen.add(question)
        data = {"family": family, "config": known, "index": index, "question": question, "answer": answer}
        data |= {"item": exact_json(item)}
        task_id = f"{family}/{data_seed}/{index}"
        made.append(single_turn(task_id, prompt.replace("{question}", question), score, data=data, **settings))
    if len(made) < size:
        raise UsageError(
            f"The family {family!r} gave {len(made)} different questions for the split {split!r}, not {size}.",
            hint="Ask for fewer, or widen its `config`.",
            param="size",
        )
    return made


def score(answer: str, task: Mapping[str, Any]) -> float:
    """The verifier: what the family's own scorer says, from 0 to 1.

    Some scorers raise for a text that is no answer at all. That is the policy's doing, and worth 0, if the same scorer
    takes the item's own answer; else it is the scorer's, and this raises.
    """
    dataset = _dataset(task["family"], task["config"])
    item = dataset[task["index"]] if task["item"] is None else from_exact_json(task["item"])
    if item["question"] != task["question"]:
        raise ValueError(f"the installed reasoning-gym makes another item {task['index']} of {task['family']}")
    said = extract_answer(answer) if task["answer"] == "tags" else answer.strip()
    try:
        return float(dataset.score_answer(said, item))
    except Exception:  # the scorer is the library's, and may raise anything at a text that is no answer
        dataset.score_answer(item["answer"], item)
        return 0.0


def exact_json(value: Any) -> Any:
    """A value as JSON that `from_exact_json` turns back into an equal one; None for what JSON cannot hold."""
    try:
        packed = _packed(value)
        json.dumps(packed, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return packed


def from_exact_json(value: Any) -> Any:
    """What `exact_json` was given."""
    if isinstance(value, list):
        return [from_exact_json(one) for one in value]
    if isinstance(value, dict):
        ((kind, parts),) = value.items()
        if kind == "tuple":
            return tuple(from_exact_json(one) for one in parts)
        return {from_exact_json(name): from_exact_json(one) for name, one in parts}
    return value


def _packed(value: Any) -> Any:
    if type(value) is list:
        return [_packed(one) for one in value]
    if type(value) is tuple:
        return {"tuple": [_packed(one) for one in value]}
    if type(value) is dict:
        return {"dict": [[_packed(name), _packed(one)] for name, one in value.items()]}
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TypeError(type(value).__name__)


def _dataset(family: str, config: Mapping[str, Any]) -> Any:
    try:
        return reasoning_gym.create_dataset(family, **config)
    except (ValueError, TypeError, AssertionError) as error:
        raise UsageError(f"reasoning-gym cannot make {family!r} of {dict(config)}: {error}.", param="family") from error


def _side(question: str) -> Split:
    digest = hashlib.sha256(question.encode()).digest()
    return "heldout" if digest[0] % _HELDOUT_SHARE == 0 else "train"

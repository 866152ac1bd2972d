"""Task folders in Harbor's format, as far as they can be run without building a container.

    TRAIN = tasks("path/to/dataset", harness="mini-swe-agent")

A task is a folder:

    task.toml  instruction.md  environment/Dockerfile  tests/test.sh  solution/

Of the Dockerfile, WORKDIR, ENV and COPY of files into the working folder are carried out; `left_out` names what is not
(FROM, RUN, …), and whoever runs the task decides whether this machine, or an image given elsewhere, makes up for it.
What would change how the task is judged (several steps, a verifier in a container of its own) is refused.
"""

from __future__ import annotations

import posixpath
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.errors import UsageError
from practicum.types.rollouts import Task, Timeouts

WORKDIR = "/app"
_MOST_TESTS_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """A task. `tests` are the verifier's files by path below /tests; times are seconds, None where none is given.

    `workdir`, `env` and `files` are for the sandbox in which the agent works; they and `instruction` are all of the
    task that an agent may see.
    """

    name: str
    instruction: str
    tests: Mapping[str, bytes]
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = WORKDIR
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    image: str | None = None
    left_out: tuple[str, ...] = ()


def tasks(
    folder: str | Path,
    *,
    harness: str,
    options: Mapping[str, Any] | None = None,
    within: str | Path | None = None,
    without: bool = False,
    timeouts: Timeouts | None = None,
    **settings: Any,
) -> list[Task]:
    """A task's folder, or a folder of such folders, as tasks of a harness, sorted by path. The grader is Harbor's own.

    Args:
        folder: where they lie.
        harness: which agent works on them, by its name.
        options: the harness's own.
        within: the folder that `rollouts.graders_folder` names, where the tasks' tests are looked up; the one given,
            or the one above it where that is a task itself.
        without: run a task although parts of its container are `left_out`: this machine, or the sandbox's image, has
            them.
        timeouts: for all of them, over each task's own.
        settings: further fields of `practicum.types.rollouts.Task`.

    Raises: UsageError for a task that is not whole, cannot be judged here, or needs what is left out.
    """
    root = Path(folder).resolve()
    alone = (root / "task.toml").is_file()
    folders = [root] if alone else sorted(path.parent for path in root.glob("*/task.toml"))
    if not folders:
        raise UsageError(f"{root} holds no task in Harbor's format.", hint="A task's folder has a task.toml.")
    base = Path(within).resolve() if within is not None else root.parent if alone else root
    made: dict[str, Task] = {}
    for one in folders:
        if not one.is_relative_to(base):
            raise UsageError(f"The task {one} does not lie in {base}.", param="within")
        task = load_task(one)
        if task.left_out and not without:
            raise UsageError(
                f"The Harbor task {one} needs {'; '.join(task.left_out)}, which a sandbox without a container has not.",
                hint="Say `without=True` if this machine or the sandbox's image makes up for it.",
            )
        if task.name in made:
            raise UsageError(f"Two tasks below {root} are named {task.name!r}.", hint="Groups are formed by the name.")
        made[task.name] = Task(
            task_id=task.name,
            instructions=(task.instruction,),
            harness=harness,
            options=dict(options or {}),
            files=_texts(one, task.files),
            env=dict(task.env),
            workdir=task.workdir,
            graders={"harbor": {"path": one.relative_to(base).as_posix()}},
            timeouts=timeouts or _timeouts(task),
            **settings,
        )
    return list(made.values())


def _texts(folder: Path, files: Mapping[str, bytes]) -> dict[str, str]:
    found = {}
    for name, data in files.items():
        try:
            found[name] = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{name} of the Harbor task {folder} is no text in UTF-8: not supported.") from error
    return found


def _timeouts(task: HarborTask) -> Timeouts:
    usual = Timeouts()
    agent_s, grade_s = task.agent_timeout_s or usual.agent_s, task.verifier_timeout_s
    whole_s = max(usual.whole_s, usual.prepare_s + agent_s + grade_s)
    return Timeouts(agent_s=agent_s, grade_s=grade_s, whole_s=whole_s)


def load_task(folder: Path) -> HarborTask:
    """The task in a folder. Raises UsageError for one that is not whole, or that cannot be judged here."""
    try:
        settings = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
        instruction = (folder / "instruction.md").read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{folder} is no task in Harbor's format: {error}.", hint="It needs task.toml and instruction.md."
        ) from error
    _refuse(folder, settings)
    tests = _files(folder / "tests")
    if "test.sh" not in tests:
        raise UsageError(
            f"{folder} has no tests/test.sh.", hint="Write one that puts the reward where Harbor reads it."
        )
    environment, verifier = _table(settings, "environment"), _table(settings, "verifier")
    built = _Dockerfile(folder / "environment")
    image = environment.get("docker_image")
    return HarborTask(
        name=str(_table(settings, "task").get("name", folder.name)),
        instruction=instruction,
        tests=tests,
        agent_timeout_s=_seconds(_table(settings, "agent").get("timeout_sec")),
        verifier_timeout_s=_seconds(verifier.get("timeout_sec")) or 600.0,
        verifier_env=_env(folder, verifier),
        workdir=str(environment.get("workdir") or built.workdir or WORKDIR),
        env={**built.env, **_env(folder, environment)},
        files=built.files,
        image=str(image) if image else None,
        left_out=(*([f"image {image}"] if image else []), *_unmet(environment), *built.left_out),
    )


def _refuse(folder: Path, settings: Mapping[str, Any]) -> None:
    verifier, environment = _table(settings, "verifier"), _table(settings, "environment")
    wrong = {
        "several steps": bool(settings.get("steps")),
        "a verifier in an environment of its own": verifier.get("environment_mode") == "separate"
        or bool(verifier.get("environment")),
        "commands that collect for the verifier": bool(verifier.get("collect")),
        "an operating system other than Linux": str(environment.get("os", "linux")).lower() != "linux",
        "several containers": any((folder / "environment").glob("docker-compose.y*ml")),
    }
    named = [name for name, found in wrong.items() if found]
    if named:
        raise UsageError(
            f"The Harbor task {folder} needs {' and '.join(named)}, which is not supported.", hint="Run it with Harbor."
        )


def _unmet(environment: Mapping[str, Any]) -> list[str]:
    names = ("gpus", "tpu", "mcp_servers", "healthcheck", "skills_dir", "allowed_hosts")
    return [f"environment.{name}" for name in names if environment.get(name)]


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name, {})
    if not isinstance(found, dict):
        raise UsageError(f"`{name}` in task.toml is no table.", param=name)
    return found


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UsageError(f"A timeout in task.toml is {value!r}: it must be a number of seconds above 0.")
    return float(value)


def _env(folder: Path, table: Mapping[str, Any]) -> dict[str, str]:
    env = table.get("env", {})
    if not isinstance(env, dict):
        raise UsageError(f"`env` in {folder}/task.toml is no table.", param="env")
    for name, value in env.items():
        if "${" in str(value):  # this machine's secrets are not for a sandbox in which an agent has worked
            raise UsageError(f"`env.{name}` in {folder}/task.toml takes its value from this machine: not supported.")
    return {name: str(value) for name, value in env.items()}


def _files(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    size = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            size += path.stat().st_size
            if size > _MOST_TESTS_BYTES:
                raise UsageError(f"{folder} holds more than {_MOST_TESTS_BYTES} bytes.")
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


class _Dockerfile:
    """What a Dockerfile asks for that needs no container."""

    def __init__(self, folder: Path) -> None:
        self.workdir: str | None = None
        self.env: dict[str, str] = {}
        self.files: dict[str, bytes] = {}
        self.left_out: list[str] = []
        self._folder = folder.resolve()
        file = folder / "Dockerfile"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        for line in "\n".join(lines).replace("\\\n", " ").splitlines():
            if line.strip() and not self._carried_out(line.strip()):
                self.left_out.append(line.strip()[:200])

    def _carried_out(self, line: str) -> bool:
        verb, _, rest = line.partition(" ")
        try:
            words = shlex.split(rest)
        except ValueError:
            return False
        if "$" in rest or not words:
            return False
        match verb.upper():
            case "WORKDIR":
                self.workdir = posixpath.join(self.workdir or "/", words[0])
                return True
            case "ENV" if all("=" in word for word in words):
                self.env.update({name: value for name, _, value in (word.partition("=") for word in words)})
                return True
            case "COPY" if len(words) == 2 and not words[0].startswith("-"):
                return self._copied(words[0], words[1])
        return False

    def _copied(self, source: str, target: str) -> bool:
        """Copy a file or a folder's contents, where source and target lie inside their folders."""
        workdir = self.workdir or WORKDIR
        found = (self._folder / source.lstrip("/")).resolve()
        place = posixpath.normpath(posixpath.join(workdir, target))
        inside = posixpath.relpath(place, workdir)
        if not found.is_relative_to(self._folder) or inside.startswith("..") or not found.exists():
            return False
        if found.is_dir():
            self.files.update({posixpath.normpath(f"{inside}/{name}"): data for name, data in _files(found).items()})
            return True
        if target.endswith("/") or inside == ".":
            inside = posixpath.normpath(f"{inside}/{found.name}")
        self.files[inside] = found.read_bytes()
        return True

"""A small training run of real parts: tasks for a harness of one request, and the settings under which it learns.

The harness is a process that asks the model once and leaves its answer in a file; the check prints which share of that
answer is made of plain lower-case letters, which a random model varies from answer to answer. Each rollout of a task
takes the next seed of its own, from a folder of the test's, so that a run samples the same however its rollouts are
timed.
"""

import json
from pathlib import Path

from tests.e2e.conftest import settings

TASKS = '''
import sys

from practicum.types.rollouts import Task, Timeouts

AGENT = """
import http.client, json, os, sys, urllib.parse
question, seeds = sys.argv[1:]
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
name = os.environ["PRACTICUM_MODEL"] + " " + question
seed = 0
while True:
    try:
        os.mkdir(os.path.join(seeds, f"{name} {seed}"))
        break
    except FileExistsError:
        seed += 1
body = {"model": os.environ["PRACTICUM_MODEL"], "messages": [{"role": "user", "content": question}]}
body |= {"max_tokens": 8, "seed": seed}
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
http = http.client.HTTPConnection(url.hostname, url.port)
http.request("POST", url.path + "/chat/completions", json.dumps(body), headers)
answer = http.getresponse()
said = json.load(answer)
assert answer.status == 200, said
open("answer.txt", "w", encoding="utf-8").write(said["choices"][0]["message"]["content"])
"""
CHECK = """
said = open("answer.txt", encoding="utf-8").read()
print(sum("a" <= each <= "z" for each in said) / max(1, len(said)))
"""
PYTHON = [sys.executable, "-I", "-S"]


def task(kind, number, **more):
    given = dict(
        task_id=f"{kind}{number}",
        instructions=(f"lamp {number} is {kind}",),
        harness="command",
        options={"command": [*PYTHON, "agent.py", "{instruction}", SEEDS]},
        files={"agent.py": AGENT},
        graders={"exit_status": {"command": [*PYTHON, "-c", CHECK], "reward": "printed"}},
        timeouts=Timeouts(agent_s=300.0, grade_s=300.0),
    )
    return Task(**(given | more))


MORE = {}
TRAIN = [task("late", number, **MORE) for number in range(2)]
HELDOUT = [task("broken", number) for number in range(8)]
'''

SETTINGS = """
[train]
tasks = {tasks}
steps = {steps}
groups = 2
samples = 8
learning_rate = 0.05
max_idle_steps = 2
[rollouts]
sandbox = "local"
run = 4
attempts = 1
"""


def write_tasks(folder: Path, *, more: str = "{}") -> Path:
    """The file of tasks, what is learned from with `more` fields of theirs; seeds are counted in a folder beside it."""
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    path = folder / "tasks.py"
    path.write_text(f"SEEDS = {json.dumps(str(seeds))}\n" + TASKS.replace("MORE = {}", f"MORE = {more}"), "utf-8")
    return path


def train_settings(tiny_folder: Path, tasks: Path, *, steps: int) -> str:
    """Settings under which a random model can be promoted: it learns fast, and moves far."""
    return settings(tiny_folder) + SETTINGS.format(tasks=json.dumps(str(tasks)), steps=steps)

"""An agent of one's own without any framework: a loop over plain HTTP, with a shell. The history is kept in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

SHELL = {"type": "function", "function": {
    "name": "shell", "description": "Run a shell command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}}  # fmt: skip
HISTORY = Path.home() / "messages.json"


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": os.environ["PRACTICUM_MODEL"], "messages": messages, "tools": [SHELL]}
    request = urllib.request.Request(
        f"{os.environ['PRACTICUM_BASE_URL']}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"authorization": f"Bearer {os.environ['PRACTICUM_API_KEY']}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]


def work(instruction: str) -> str:
    messages = json.loads(HISTORY.read_text()) if HISTORY.exists() else []
    messages.append({"role": "user", "content": instruction})
    while True:
        message = ask(messages)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            HISTORY.write_text(json.dumps(messages))
            return message["content"]
        for call in calls:
            line = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
            printed = f"status {done.returncode}\n{done.stdout}{done.stderr}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": printed})


def run(job: Any) -> str:
    return work(job.instruction)


if __name__ == "__main__":
    print(work(sys.argv[1]))

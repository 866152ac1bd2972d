"""A small agent over OpenAI's Agents SDK: one tool, a shell. It knows nothing of Practicum.

Address, key and model come from the environment, as the SDK reads them. The SDK keeps the conversation, so that a later
turn goes on with it.
"""

import subprocess
from pathlib import Path

from agents import Agent, Runner, SQLiteSession, function_tool


@function_tool
def shell(command: str) -> str:
    """Run a shell command in the working folder and return what it prints."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    return f"status {done.returncode}\n{done.stdout}{done.stderr}"


async def run(job) -> str:
    agent = Agent(name="worker", instructions="Do the task with the shell, then say what you did.", tools=[shell])
    history = SQLiteSession("worker", Path.home() / "worker.db")
    result = await Runner.run(agent, job.instruction, session=history)
    return str(result.final_output)

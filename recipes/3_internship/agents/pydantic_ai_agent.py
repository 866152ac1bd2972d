"""A small agent over Pydantic AI: one tool, a shell. It knows nothing of Practicum.

Address and key come from the environment, as the framework reads them. Messages are kept in a file, so that a later
turn goes on with the conversation.
"""

import os
import subprocess
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

HISTORY = Path.home() / "messages.json"


async def run(job) -> str:
    agent = Agent(
        f"openai-chat:{os.environ['OPENAI_DEFAULT_MODEL']}",
        instructions="Do the task with the shell, then say what you did.",
    )

    @agent.tool_plain
    def shell(command: str) -> str:
        """Run a shell command in the working folder and return what it prints."""
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
        return f"status {done.returncode}\n{done.stdout}{done.stderr}"

    earlier = ModelMessagesTypeAdapter.validate_json(HISTORY.read_bytes()) if job.turn else None
    result = await agent.run(job.instruction, message_history=earlier)
    HISTORY.write_bytes(result.all_messages_json())
    return result.output

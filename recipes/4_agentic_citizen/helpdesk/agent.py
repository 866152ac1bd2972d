"""A help desk's agent, as its team wrote it: the official `openai` package, one system prompt, nothing of Practicum.

It reads customers' messages (JSON lines with `id` and `text`) and prints one JSON line an answer. Where the model
lives and the key come from the usual environment variables, OPENAI_BASE_URL and OPENAI_API_KEY.

    python agent.py < messages.jsonl > answers.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from openai import OpenAI

SYSTEM_PROMPT = (
    "You are the support assistant of Maple & Finch, an online shop for home goods. Explain to the customer what to do."
)


def answer(client: OpenAI, model: str, message: dict[str, Any]) -> dict[str, Any]:
    """One customer's message, one answer."""
    completion = client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": message["text"]}],
        temperature=0.7,
        max_tokens=96,
    )
    choice = completion.choices[0]
    return {
        "id": message["id"],
        "completion": completion.id,
        "model": completion.model,
        "text": choice.message.content or "",
        "finish_reason": choice.finish_reason,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="practicum")
    parser.add_argument("--parallel", type=int, default=32, help="conversations at a time")
    options = parser.parse_args()
    messages = [json.loads(line) for line in sys.stdin if line.strip()]
    client = OpenAI(timeout=600, max_retries=2)
    with ThreadPoolExecutor(options.parallel) as pool:
        for result in pool.map(lambda message: answer(client, options.model, message), messages):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

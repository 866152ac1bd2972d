"""A small agent over LangGraph: a model node, and a tool node with a shell. It knows nothing of Practicum.

Address and key come from the environment, as langchain-openai reads them. Messages are kept in a file, so that a later
turn goes on with the conversation.
"""

import json
import os
import subprocess
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage, messages_from_dict, messages_to_dict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

HISTORY = Path.home() / "messages.json"


@tool
def shell(command: str) -> str:
    """Run a shell command in the working folder and return what it prints."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    return f"status {done.returncode}\n{done.stdout}{done.stderr}"


def run(job) -> str:
    model = ChatOpenAI(model=os.environ["OPENAI_DEFAULT_MODEL"]).bind_tools([shell])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([shell]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    if job.turn:
        messages = messages_from_dict(json.loads(HISTORY.read_text()))
    else:
        messages = [SystemMessage("Do the task with the shell, then say what you did.")]
    end = graph.compile().invoke({"messages": [*messages, HumanMessage(job.instruction)]})
    HISTORY.write_text(json.dumps(messages_to_dict(end["messages"])))
    return str(end["messages"][-1].content)

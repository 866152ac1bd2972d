"""What a process has imported that commands are forked from; see `forked.py`."""

import apsw
import openai
import peft
import uvicorn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import practicum.cli.main
import practicum.cli.rollout_host
import practicum.client
import practicum.dashboard
import practicum.engines.embedded.models
import practicum.engines.embedded.sampler
import practicum.engines.embedded.workbench
import practicum.engines.scripted
import practicum.gateway.server
import practicum.live.loop

__all__ = ["AutoModelForCausalLM", "LlamaForCausalLM", "apsw", "openai", "peft", "practicum", "uvicorn"]

"""TRL's GRPOTrainer on the task of `grpo_vs_trl.py`, in a process of its own: one JSON object on stdout.

The trainer is TRL's as it is installed. Its generation is timed by a wrapper around the method that does it, and its
held-out reward is measured between steps, outside of every time that is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Train, and say what each step took and came to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path, help="JSON file: model, prompts, settings.")
    job = json.loads(parser.parse_args().job.read_text("utf-8"))
    os.environ["OMP_NUM_THREADS"] = str(job["threads"])
    print(json.dumps(_train(job)), file=_stdout)


def _train(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    reward = _reward(job)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [reward(each[0]["content"]) for each in completions],
        args=GRPOConfig(
            output_dir=job["folder"],
            per_device_train_batch_size=job["rows"],
            num_generations=job["samples"],
            max_completion_length=job["max_tokens"],
            max_steps=job["steps"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            adam_beta2=0.99,
            max_grad_norm=1.0,
            temperature=1.0,
            beta=0.0,
            loss_type="dapo",
            scale_rewards="group",
            gradient_checkpointing=job["checkpointing"],
            bf16=False,
            use_cpu=True,
            seed=job["seed"],
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": each}]} for each in job["prompts"]]),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=job["rank"], lora_alpha=job["alpha"], target_modules="all-linear", task_type="CAUSAL_LM"
        ),
    )
    steps: list[dict[str, float]] = []
    clock = {"sample_s": 0.0, "sampled": 0.0, "eval_s": 0.0, "began": 0.0}
    generate = trainer._generate_and_score_completions

    def timed(inputs: Any) -> Any:
        began = time.monotonic()
        made = generate(inputs)
        clock["sample_s"] = time.monotonic() - began
        clock["sampled"] = float(made["completion_mask"].sum())
        return made

    trainer._generate_and_score_completions = timed

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Times whole steps, and judges between them."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if job["eval_every"] and state.global_step % job["eval_every"] == 0:
                clock["eval"] = _judged(trainer.model, tokenizer, job, reward)
            clock["began"] = time.monotonic()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            whole = time.monotonic() - clock["began"]
            known = {"heldout_reward": clock.pop("eval")} if "eval" in clock else {}
            steps.append(
                {"step_s": whole, "sample_s": clock["sample_s"], "train_s": whole - clock["sample_s"]}
                | {"sampled_tokens": clock["sampled"]}
                | known
            )

    trainer.add_callback(Clock())
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    for step, value in zip(steps, rewards, strict=True):
        step["reward"] = value
    if job["eval_every"]:
        steps.append({"heldout_reward": _judged(trainer.model, tokenizer, job, reward)})
    return {"steps": steps, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _reward(job: dict[str, Any]) -> Any:
    """The reward function of the job's tasks file."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("tasks", job["tasks"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda answer: module.reward(answer, {})


def _judged(model: Any, tokenizer: Any, job: dict[str, Any], reward: Any) -> float:
    """Mean reward of one sampled answer to each held-out prompt."""
    import torch

    chats = [[{"role": "user", "content": each}] for each in job["heldout"]]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, padding=True, padding_side="left", return_tensors="pt", return_dict=True
    )
    torch.manual_seed(1)
    model.eval()
    with torch.no_grad():
        out = model.generate(**inputs, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=job["max_tokens"])
    model.train()
    texts = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return float(sum(reward(text) for text in texts) / len(texts))


if __name__ == "__main__":
    _stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print goes to stderr
    sys.stdout = sys.stderr
    main()

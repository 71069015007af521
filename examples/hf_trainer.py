"""Hugging Face Trainer with ``BadputCallback``: a tiny GPT-2 from its configuration, no download.

python examples/hf_trainer.py runs/trainer && badput report runs/trainer
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import badput
from badput.adapters.transformers import BadputCallback

EXAMPLES, LENGTH, VOCABULARY = 80, 16, 64


def main(run: str) -> None:
    """Train, evaluate and save as the Trainer is told to."""
    badput.init(run, name="trainer")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = {"n_layer": 1, "n_head": 2, "n_embd": 32, "n_positions": LENGTH}
    with badput.span("model"):
        model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **size))
    rows = [{"input_ids": r, "labels": r} for r in torch.randint(0, VOCABULARY, (EXAMPLES, LENGTH))]
    arguments = TrainingArguments(
        output_dir=str(Path(run) / "checkpoints"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=20,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        include_num_input_tokens_seen="all",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[BadputCallback()]
    )
    trainer.train(resume_from_checkpoint="--resume" in sys.argv or None)
    badput.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/trainer")

"""Hugging Face's Trainer over GradientFlow: ``gradientflow run -n 2 -- python train_hf_trainer.py``.

With ``--strategy "top_k(ratio=16)"`` it sends gradients by that strategy, without DistributedDataParallel.
"""

import argparse
import tempfile
from functools import partial

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from gradientflow.torch.integrations.transformers import GradientFlowTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--strategy")
strategy = parser.parse_args().strategy
kind = Trainer if strategy is None else partial(GradientFlowTrainer, strategy=strategy)

dist.init_process_group("gradientflow")  # first: TrainingArguments take the group that they find
set_seed(0)


def counting(length, seed):
    """Make sequences that count up from a random number: each number but the first can be predicted."""
    starts = torch.randint(50, (length, 1), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": each, "labels": each} for each in (starts + torch.arange(16)) % 50]


def accuracy(evaluated):
    """Compute the share of the numbers that the model predicts, over the sequences of all ranks."""
    return {"accuracy": (evaluated.predictions[:, :-1].argmax(-1) == evaluated.label_ids[:, 1:]).mean()}


sizes = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,  # for checkpoints, which are off here
        use_cpu=True,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        learning_rate=1e-2,
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    trainer = kind(
        GPT2LMHeadModel(sizes),
        arguments,
        train_dataset=counting(800, seed=1),
        eval_dataset=counting(200, seed=2),
        compute_metrics=accuracy,
    )
    trainer.train()
    found = trainer.evaluate()

if trainer.is_world_process_zero():
    print(f"accuracy {found['eval_accuracy']:.3f} on {arguments.world_size} ranks over {dist.get_backend()}")
dist.destroy_process_group()

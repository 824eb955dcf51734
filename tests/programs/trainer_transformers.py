"""The Trainer of Transformers over the process group, beside Gloo, and with strategies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from gradientflow.torch.integrations.transformers import GradientFlowTrainer

FOLDER = Path(sys.argv[1])
models: dict[str, GPT2LMHeadModel] = {}  # models that a strategy has trained, and trains again


def sequences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(50, (count, 16), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": each, "labels": each} for each in tokens]


def trained(name: str, steps: int, strategy: str | None = None, resume: int | None = None) -> tuple[bytes, float]:
    """Train, with accumulation, clipping, dropout, evaluations and checkpoints. Return weights and the last loss."""
    set_seed(0)
    sizes = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = models[name] if resume and name in models else GPT2LMHeadModel(sizes)
    settings = TrainingArguments(
        output_dir=str(FOLDER / name),
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        max_grad_norm=0.5,
        max_steps=steps,
        eval_strategy="steps",
        eval_steps=steps // 2,
        save_steps=steps // 2,
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    data: dict[str, Any] = {"train_dataset": sequences(60, 1), "eval_dataset": sequences(12, 2)}
    if strategy is None:
        trainer = Trainer(model, settings, **data)
    else:
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if strategy.startswith("csc") else None
        models[name] = model
        trainer = GradientFlowTrainer(model, settings, **data, strategy=strategy, optimizers=(sgd, None))
    trainer.train(resume_from_checkpoint=resume and str(FOLDER / name / f"checkpoint-{resume}"))
    assert trainer.args.world_size == 2
    weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    return weights, trainer.evaluate()["eval_loss"]


class Judge(GradientFlowTrainer):
    """A Trainer for which the first of two checkpoints is the best."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        return {**super().evaluate(*args, **kwargs), "eval_score": -float(self.state.global_step)}


def check_uses_of_one_trainer() -> None:
    """After training the best checkpoint counts; a second model gets the strategy; an earlier trainer stays usable."""
    sizes = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    options: dict[str, Any] = {"use_cpu": True, "max_steps": 4, "report_to": [], "disable_tqdm": True}
    data: dict[str, Any] = {"train_dataset": sequences(60, 1), "eval_dataset": sequences(12, 2)}
    best = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True}
    settings = TrainingArguments(str(FOLDER / "best"), metric_for_best_model="eval_score", **best, **options)
    trainer: Any = Judge(GPT2LMHeadModel(sizes), settings, **data, strategy="local_sgd(period=3)")
    trainer.train()
    trainer.save_model(str(FOLDER / "saved"))
    dist.barrier()
    kept = GPT2LMHeadModel.from_pretrained(FOLDER / "best" / "checkpoint-2").state_dict()
    saved = GPT2LMHeadModel.from_pretrained(FOLDER / "saved").state_dict()
    assert all(torch.equal(saved[name], each) for name, each in kept.items())
    settings = TrainingArguments(str(FOLDER / "anew"), save_strategy="no", **options)
    trainer = GradientFlowTrainer(model_init=lambda: GPT2LMHeadModel(sizes), args=settings, **data, strategy="dense")
    for _ in range(2):
        trainer.train()
        assert type(trainer.model_wrapped) is GPT2LMHeadModel
        assert type(trainer.optimizer.optimizer).__name__ == "DistributedOptimizer"
    later = GradientFlowTrainer(trainer.model, settings, **data, strategy="dense")
    later.train()
    trainer.evaluate()


dist.init_process_group("gloo")
expected = trained("gloo", 8)
# The communicator of a strategy meets through the store of any group.
assert trained("dense", 8, "dense") == expected
dist.destroy_process_group()
dist.init_process_group("gradientflow")
assert trained("ddp", 8) == expected
assert trained("ddp", 8, resume=4) == expected
assert trained("dense", 8, "dense", resume=4) == expected
assert trained("ddp", 8, "dense", resume=4) == expected, "a checkpoint of a plain Trainer"
strategies = {"csc(density=0.3, chunk_size=512)": 40, "top_k(ratio=8)": 8, "local_sgd(period=3)": 8}
for strategy, steps in strategies.items():
    name = strategy.partition("(")[0]
    expected = trained(name, steps, strategy)
    assert trained(name, steps, strategy, resume=steps // 2) == expected, strategy
    losses: list[Any] = [None, None]
    dist.all_gather_object(losses, expected)
    assert losses == [expected, expected], strategy
check_uses_of_one_trainer()
dist.destroy_process_group()
print("trained")

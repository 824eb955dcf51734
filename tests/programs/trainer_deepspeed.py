"""ZeRO of DeepSpeed, stages 1 and 2: ``BACKEND FILE``, where rank 0 writes the weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist

BACKEND, FILE = sys.argv[1], Path(sys.argv[2])

deepspeed.init_distributed(dist_backend=BACKEND, verbose=False)
assert dist.get_backend() == BACKEND
weights = b""
for stage in (1, 2):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "gradient_clipping": 0.5,
    }
    engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config=config)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(8):
        x = torch.randn(8, 20)
        engine.backward(torch.nn.functional.cross_entropy(engine(x), (x.sum(1) > 0).long()))
        engine.step()
    weights += b"".join(each.detach().numpy().tobytes() for each in network.parameters())
if dist.get_rank() == 0:
    FILE.write_bytes(weights)
os.write(1, b"trained\n")
dist.destroy_process_group()

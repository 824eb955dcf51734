"""Training with a fifth of the gradients, in NumPy: ``gradientflow run -n 2 -- python train_sparse_numpy.py``."""

import numpy as np

import gradientflow as gf
from gradientflow.optimizers import SGD, LinearWarmup
from gradientflow.training import ArrayLoop

random = np.random.default_rng(0)
x = random.standard_normal((4000, 20), np.float32)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype(np.float32)

with gf.init() as comm:
    w1, w2 = random.standard_normal((20, 256), np.float32) / 5, random.standard_normal(256, np.float32) / 16
    # In the order of backpropagation; the weights of rank 0 are broadcast. Chunks of a large model have 32768 elements.
    training = ArrayLoop(comm, [w2, w1], "csc(density=0.2, chunk_size=128, warmup=50)")
    optimizer = SGD(training, training.weights, lr=LinearWarmup(0.05, steps=50), momentum=0.9)
    g2, g1 = training.gradients

    batches = np.random.default_rng(comm.rank)  # every rank has batches of its own
    for _ in range(400):
        batch = batches.integers(len(x), size=32)
        hidden = np.maximum(x[batch] @ w1, 0)
        error = (1 / (1 + np.exp(-hidden @ w2)) - y[batch]) / len(batch)
        np.matmul(error, hidden, out=g2)  # overwrites what the last iteration has left
        training.ready(0)  # its important chunks may travel now, and the others stay in residuals
        np.matmul(x[batch].T, np.outer(error, w2) * (hidden > 0), out=g1)
        training.ready(1)
        training.wait()  # means where chunks were sent, zeros elsewhere
        optimizer.step()  # of what was sent

    accuracy = (((np.maximum(x @ w1, 0) @ w2) > 0) == y).mean()
    if comm.rank == 0:
        (pool,) = training.synchronizer.pools
        print(f"sent {len(pool.sent)} of {pool.chunks} chunks")
        print(f"accuracy {accuracy:.3f}")

"""Data-parallel training with a gradient pool and NumPy alone: ``gradientflow run -n 2 -- python train_numpy.py``."""

import numpy as np

import gradientflow as gf

random = np.random.default_rng(0)
x = random.standard_normal((4000, 20), np.float32)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype(np.float32)

with gf.init() as comm:
    w1, w2 = random.standard_normal((20, 64), np.float32) / 5, random.standard_normal(64, np.float32) / 8
    comm.broadcast(w1)
    comm.broadcast(w2)
    pool = gf.GradientPool(comm, [w2.shape, w1.shape])  # in the order of backpropagation
    g2, g1 = pool.views

    batches = np.random.default_rng(comm.rank)  # every rank has batches of its own
    for _ in range(400):
        batch = batches.integers(len(x), size=32)
        hidden = np.maximum(x[batch] @ w1, 0)
        error = (1 / (1 + np.exp(-hidden @ w2)) - y[batch]) / len(batch)
        np.matmul(error, hidden, out=g2)  # straight into the pool
        pool.ready(0)  # it may travel now
        np.matmul(x[batch].T, np.outer(error, w2) * (hidden > 0), out=g1)
        pool.ready(1)
        pool.wait()  # both are means over the ranks
        w1 -= 0.5 * g1
        w2 -= 0.5 * g2

    accuracy = (((np.maximum(x @ w1, 0) @ w2) > 0) == y).mean()
    if comm.rank == 0:
        print(f"accuracy {accuracy:.3f}")

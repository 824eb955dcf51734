"""Flax and Optax with sparse communication inside of jit: ``gradientflow run -n 2 -- python train_flax.py``."""

import numpy as np
import optax
from flax import nnx

import gradientflow as gf
from gradientflow.jax import average

random = np.random.default_rng(0)
x = random.standard_normal((4000, 20), np.float32)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype(np.int32)


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.out = nnx.Linear(20, 64, rngs=rngs), nnx.Linear(64, 2, rngs=rngs)

    def __call__(self, inputs):
        return self.out(nnx.relu(self.hidden(inputs)))


def loss(model, inputs, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(inputs), labels).mean()


@nnx.jit
def step(model, optimizer, inputs, labels):
    optimizer.update(model, nnx.grad(loss)(model, inputs, labels))


with gf.init() as comm:
    model = Model(nnx.Rngs(0))  # the same weights on all ranks
    transformations = optax.chain(average("csc(density=0.2, chunk_size=64)", comm=comm), optax.sgd(0.1, momentum=0.9))
    optimizer = nnx.Optimizer(model, transformations, wrt=nnx.Param)

    batches = np.random.default_rng(comm.rank)  # every rank has batches of its own
    for _ in range(300):
        batch = batches.integers(len(x), size=32)
        step(model, optimizer, x[batch], y[batch])

    accuracy = (model(x).argmax(1) == y).mean()
    if comm.rank == 0:
        print(f"accuracy {accuracy:.3f}")

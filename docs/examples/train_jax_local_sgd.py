"""Gradients by JAX, weights by a strategy: ``gradientflow run -n 2 -- python train_jax_local_sgd.py``.

Such a strategy cannot work inside of jax.jit, where nothing is changed in place. So the weights are NumPy arrays of the
array loop, which JAX reads for every pass.
"""

import jax
import jax.numpy as jnp
import numpy as np

import gradientflow as gf

random = np.random.default_rng(0)
x = random.standard_normal((4000, 20), np.float32)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype(np.float32)


def loss(weights, inputs, labels):
    """Return the cross entropy of a perceptron."""
    w2, w1 = weights
    logits = jax.nn.relu(inputs @ w1) @ w2
    return jnp.mean(jnp.logaddexp(0, logits) - labels * logits)


gradients_of = jax.jit(jax.grad(loss))


with gf.init() as comm:
    weights = [random.standard_normal(64, np.float32) / 8, random.standard_normal((20, 64), np.float32) / 5]
    with gf.training.ArrayLoop(comm, weights, "local_sgd(period=8)") as training:
        optimizer = gf.optimizers.SGD(training, weights, lr=0.5)
        batches = np.random.default_rng(comm.rank)  # every rank has batches of its own
        for _ in range(400):
            batch = batches.integers(len(x), size=32)
            for index, gradient in enumerate(gradients_of(weights, x[batch], y[batch])):
                training.gradients[index][...] = gradient
                training.ready(index)
            training.wait()
            optimizer.step()  # every eighth one averages the weights
        training.finish()

    accuracy = (((np.maximum(x @ weights[1], 0) @ weights[0]) > 0) == y).mean()
    if comm.rank == 0:
        print(f"accuracy {accuracy:.3f}")

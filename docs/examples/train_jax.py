"""An unchanged data-parallel program of JAX: ``gradientflow run -n 2 --jax -- python train_jax.py``."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()
mesh = Mesh(np.array(jax.devices()), ("data",))  # a device of each process

random = np.random.default_rng(0)
x = random.standard_normal((4000, 20), np.float32)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).astype(np.float32)
weights = [random.standard_normal((20, 64), np.float32) / 5, random.standard_normal(64, np.float32) / 8]


def loss(weights, inputs, labels):
    logits = jax.nn.relu(inputs @ weights[0]) @ weights[1]
    return jnp.mean(jnp.logaddexp(0, logits) - labels * logits)


def step(weights, inputs, labels):
    gradients = jax.grad(loss)(weights, inputs, labels)
    gradients = jax.lax.pmean(gradients, "data")
    return jax.tree.map(lambda weight, gradient: weight - 0.5 * gradient, weights, gradients)


step = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data"), P("data")), out_specs=P(), check_vma=False))
by_rank = NamedSharding(mesh, P("data"))
batches = np.random.default_rng(jax.process_index() + 1)  # every rank has batches of its own
for _ in range(400):
    batch = batches.integers(len(x), size=32)
    weights = step(weights, *(jax.make_array_from_process_local_data(by_rank, each[batch]) for each in (x, y)))

first, second = (np.asarray(weight) for weight in weights)
accuracy = (((np.maximum(x @ first, 0) @ second) > 0) == y).mean()
if jax.process_index() == 0:
    print(f"accuracy {accuracy:.3f}")

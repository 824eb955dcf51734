"""Benchmarks of GradientFlow beside other libraries.

Installed as ``gradientflow.bench``. Every measurement here follows these rules:

- *Verification first.* Every contestant has to produce the exact result on fresh random data, element by element,
  before it is timed, and the result of the last timed call is checked again. A contestant with a wrong result is shown
  as WRONG, without times.
- *Side by side.* All contestants run interleaved in one job, in a new random order each iteration, so that a
  disturbance of the machine affects all of them.
- *The slowest rank.* A collective is done when every rank has its result: each iteration counts with the time of its
  slowest rank, and the median over iterations is reported.
- *The whole cost.* Besides the bare call, the time to write fresh values into the buffer and then call is reported,
  because a fast call can leave the buffer in a state that makes the next writes slow.
"""

"""Trainers of other libraries with a DistributedOptimizer: each module needs the library of its name."""

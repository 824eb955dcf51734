"""Training of real models on real data with each strategy, compared with PyTorch's DistributedDataParallel.

The rules of `gradientflow.bench` hold here too: every contestant is checked before it is timed, all take turns in one
job, and a step counts with the time of its slowest rank.
"""

"""Collectives of unchanged JAX programs beside those of gloo, and what our calls cost inside of jit.

A process of JAX has one library for its collectives, so libraries take turns as jobs: several rounds of one job each,
in an order that changes from round to round. The other rules of `gradientflow.bench` hold: fresh random data is
verified before anything is timed, and a call counts with the time of its slowest rank.
"""

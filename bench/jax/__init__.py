"""Collectives of unchanged JAX programs beside gloo's, and the cost of our calls inside jit.

A JAX process has one library for its collectives, so libraries take turns as jobs: several rounds of one job each, in
an order that changes from round to round. Otherwise the rules of `gradientflow.bench` hold: fresh random data is
verified before anything is timed, and a call counts with the time of its slowest rank.
"""

"""Processes that join a job, and how long the others wait for them."""

"""Bases of the methods: pools, residuals, selected entries, servers, periodic exchanges, copies to the host."""

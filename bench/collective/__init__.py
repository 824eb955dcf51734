"""Collectives, each beside those of other libraries."""

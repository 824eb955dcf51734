"""Collectives, compared with those of other libraries."""

"""Collectives, compared with other libraries."""

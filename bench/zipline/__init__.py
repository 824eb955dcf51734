"""Searches for the next barrier of ElasticBSP, compared with each other."""

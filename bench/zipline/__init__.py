"""The searches for the next barrier of ElasticBSP, beside each other."""

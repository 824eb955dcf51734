"""The name of the backend."""

BACKEND = "gradientflow"

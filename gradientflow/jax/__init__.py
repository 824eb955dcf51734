"""GradientFlow for JAX."""

from __future__ import annotations

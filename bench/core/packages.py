"""Packages that benches need beside those of the library, and the extras that bring them."""

from __future__ import annotations

from importlib.util import find_spec

from .plan import PlanError

# A module, its package, and the smallest extra that brings it; "bench" brings all.
_PACKAGES = {
    "jax": ("jax", "jax"),
    "jinja2": ("jinja2", "bench"),
    "matplotlib": ("matplotlib", "plot"),
    "optax": ("optax", "bench"),
    "pybind11": ("pybind11", "bench"),
    "sklearn": ("scikit-learn", "bench"),
    "torch": ("torch", "torch"),
}


def check_packages(user: str, *modules: str) -> None:
    """Refuse a bench or option that needs modules that are not installed."""
    missing = [_PACKAGES[name] for name in modules if find_spec(name) is None]
    if not missing:
        return
    packages, extras = zip(*missing, strict=True)
    verb = "are" if len(packages) > 1 else "is"
    extra = extras[0] if len(set(extras)) == 1 else "bench"
    raise PlanError(
        f"{user} needs {' and '.join(packages)}, which {verb} not installed: pip install 'gradientflow[{extra}]'"
    )

"""JAX in commands: checks that JAX can be served, and the variables that JAX needs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

import click

from gradientflow._location import jax_library
from gradientflow.jax.versions import installed_version, untried
from gradientflow.launch import LaunchError, jax_contradictions, jax_variables

_USE = """\
# In the shell of each rank, before the program: eval "$(gradientflow config --jax)". A variable that is set stays as it
# is. Lines with the rank are printed where a launcher has set it, and MASTER_ADDR and MASTER_PORT or
# JAX_COORDINATOR_ADDRESS; without them jax.distributed.initialize() needs its arguments.
"""


def check_jax(*, needed: bool) -> None:
    """Raise if JAX cannot be served; print warnings of likely problems to standard error.

    Parameters
    ----------
    needed : bool
        True if this Python runs the program, and therefore must have JAX.

    Raises
    ------
    LaunchError
        If JAX, or the library that JAX loads in place of MPI, is missing.
    """
    library = jax_library()
    if not library.is_file():
        raise LaunchError(f"{library} is missing: this installation has no library for JAX; install it again")
    version = installed_version()
    if version is None and needed:
        raise LaunchError("JAX is not installed here: pip install 'gradientflow[jax]'")
    for sentence in filter(None, [untried(version) if version else "", *jax_contradictions(os.environ)]):
        click.echo(f"gradientflow: {sentence}", err=True)


def jax_lines(variables: Mapping[str, str]) -> list[str]:
    """Return shell lines that export the variables for a rank with this environment, with a comment on their use."""
    exports = (f"export {name}={shlex.quote(value)}" for name, value in jax_variables(variables).items())
    return [*_USE.splitlines(), *exports]

"""Checks of the names of hosts before a job is started on them."""

from __future__ import annotations

import os
import socket

from gradientflow.launch import LaunchError, in_allocation, slots_of, ssh_settings, without_user

# If any of these variables is set, the launcher may reach hosts without ssh, under other names.
_AGENTS = (
    *("PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent"),
    *("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP"),
)


def check_hosts(hosts: str | None) -> None:
    """Raise if the name of a host is known neither to this machine nor to its ssh.

    Parameters
    ----------
    hosts : str, optional
        Hosts of a job, as ``name:slots,name:slots``.

    Raises
    ------
    gradientflow.launch.LaunchError
        If `hosts` is no such list, or if names cannot be resolved and ssh has no entry for them. The message lists all
        of these names.
    """
    names = [] if hosts is None else slots_of(hosts)
    if in_allocation() or any(os.environ.get(agent) for agent in _AGENTS):
        return
    reasons = {name: _why_unknown(name) for name in map(without_user, names)}
    unknown = {name: reason for name, reason in reasons.items() if reason and not _is_known_to_ssh(name)}
    if unknown:
        raise LaunchError(
            f"{', '.join(unknown)} cannot be resolved ({next(iter(unknown.values()))}): a host is given by a name that "
            "this machine or its ssh knows, or by an address"
        )


def _why_unknown(name: str) -> str:
    """Return the reason why a name cannot be resolved; empty if it can."""
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError as error:  # no valid name: a part is empty or too long
        return str(error.__cause__ or error)
    return ""


def _is_known_to_ssh(name: str) -> bool:
    """Return True if the settings of ssh replace a name, or reach its host through another host."""
    settings = ssh_settings(name)
    goes_through_another = not {"proxyjump", "proxycommand"}.isdisjoint(settings)
    return goes_through_another or settings.get("hostname", name).lower() != name.lower()

"""Check that this host can reach a meeting point, for ``gradientflow doctor --meet``."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from gradientflow import waits
from gradientflow._location import core
from gradientflow.errors import ArgumentError, CommunicationError, CommunicationTimeoutError, MismatchError
from gradientflow.meeting.stores import TOKEN
from gradientflow.meeting.variables import split_address

from .check import Check
from .network import address_towards


def meeting_point(place: str) -> list[Check]:
    """Check that a meeting point can be reached, and identify the server there.

    Parameters
    ----------
    place : str
        ``host:port``, several with commas; they are tried in turn, as ranks do when they meet.

    Returns
    -------
    list of Check
        A check for each meeting point, and the address at which ranks would reach this host.
    """
    places = [each.strip() for each in place.split(",")]
    return [*map(_try, places), address_towards(",".join(places))]


def _try(place: str) -> Check:
    try:
        host, port = split_address(place, "--meet")
    except ArgumentError as error:
        return Check(place, "fail", "no address", str(error))
    try:
        socket.create_connection((host, port), waits.PLACE_ANSWERS.seconds).close()
    except socket.gaierror as error:
        return Check(place, "fail", "its name is not known here", f"{host}: {error.strerror}")
    except UnicodeError as error:
        return Check(place, "fail", "no name of a host", f"{host}: {error.__cause__ or error}")
    except ConnectionRefusedError:
        return _unused_port(place, host, port)
    except OSError as error:
        late = f"no answer within {waits.PLACE_ANSWERS.seconds:g} s"
        reason = late if isinstance(error, TimeoutError) else error.strerror or str(error)
        advice = "the host is off, or a firewall or a wrong address keeps this one from it"
        return Check(place, "fail", f"cannot be reached: {reason}", advice)
    return _listener(place)


def _unused_port(place: str, host: str, port: int) -> Check:
    """Return the check of a port without a listener. On the host of rank 0 such a port is free for the job."""
    with contextlib.suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a store does
            try:
                trying.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    advice = "rank 0 does so only while a job starts: start it, or listen there, and try again"
                    return Check(place, "warn", "the host can be reached, but nobody listens at this port", advice)
                raise
            return Check(place, "ok", "a free port of this host: rank 0 can listen there")
    return Check(place, "fail", "a port of this host at which rank 0 may not listen", "choose another one")


def _listener(place: str) -> Check:
    try:
        core.TcpStore(place, timeout=waits.PLACE_ANSWERS.seconds, token=os.environ.get(TOKEN, ""))
    except MismatchError as error:
        return Check(place, "warn", "reached: a store of GradientFlow of another job", str(error))
    except CommunicationTimeoutError:
        advice = "right for torchrun's store; rank 0 of another job could not listen there"
        return Check(place, "warn", "reached: something that is no store of GradientFlow", advice)
    except CommunicationError as error:
        return Check(place, "fail", "reached, but it cannot be talked to", str(error))
    return Check(place, "ok", "reached: a store of GradientFlow, which takes this process in")

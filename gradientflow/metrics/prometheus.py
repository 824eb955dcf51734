"""Metrics at a port for Prometheus: the first rank of each host serves those of all its ranks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from gradientflow.agreement import gather
from gradientflow.blocked_signals import signals_blocked
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError

from .names import METRICS
from .registry import Source, Values

_LABELS = ("rank", "kind", "source")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def own_folder() -> Path:
    """Return the path of a folder that does not exist."""
    return Path(tempfile.gettempdir(), f"gradientflow-metrics-{secrets.token_hex(16)}")


def shared_folder(comm: Communicator) -> tuple[Path, bool]:
    """Return the folder that the ranks of this host share, and True on the first rank, which serves. Collective."""
    boot = _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else ""
    mine = json.dumps([f"{socket.gethostname()} {boot} {os.getuid()}", str(own_folder())])
    everyone = [json.loads(text) for text in gather(comm, mine.encode())]
    host = everyone[comm.rank][0]
    first = next(rank for rank, each in enumerate(everyone) if each[0] == host)
    return Path(everyone[first][1]), first == comm.rank


class Prometheus:
    """A port that serves the metrics of a host, or, on its further ranks, a file from which they are served.

    The name is ``prometheus:PORT``, at the loopback address, or ``prometheus:ADDRESS:PORT``. The ranks of the host
    share the folder.
    """

    def __init__(self, name: str, rank: int, folder: Path, serves: bool) -> None:
        self._name = name
        self._folder = folder
        self._file = folder / f"rank{rank}.json"
        self._values: dict[str, tuple[str, Values]] = {}
        self._server: Any = None
        try:
            import prometheus_client
            from prometheus_client import core
        except ImportError as error:
            raise ArgumentError(
                f"GRADIENTFLOW_METRICS: {name} needs the package prometheus_client, and {error}: "
                "pip install 'gradientflow[metrics]'"
            ) from error
        folder.mkdir(mode=0o700, exist_ok=True)
        if serves:
            address, _, port = name.removeprefix("prometheus:").rpartition(":")
            registry = prometheus_client.CollectorRegistry()
            collector: Any = _Collector(folder, core)
            registry.register(collector)
            try:
                with signals_blocked():
                    self._server, _ = prometheus_client.start_http_server(
                        int(port), address.strip("[]") or "127.0.0.1", registry
                    )
            except OSError as error:
                shutil.rmtree(folder, ignore_errors=True)
                raise ArgumentError(f"GRADIENTFLOW_METRICS: {name} cannot be served: {error}") from error

    def write(self, source: Source, values: Values) -> None:
        """Replace the file of this rank."""
        self._values[source.name] = source.kind, values
        new = self._file.with_suffix(".new")
        with suppress(FileNotFoundError):  # the rank that serves has ended
            new.write_text(json.dumps(self._values), encoding="utf-8")
            new.replace(self._file)

    def close(self) -> None:
        """End the service, and remove what was written."""
        if self._server is None:
            self._file.unlink(missing_ok=True)
            return
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __str__(self) -> str:
        """Return the name of the place."""
        return self._name


class _Collector:
    """Collector of the metrics in the files of a host's ranks, for prometheus_client."""

    def __init__(self, folder: Path, core: ModuleType) -> None:
        self._folder = folder
        self._core = core

    def collect(self) -> Iterator[object]:
        """Yield all metrics."""
        rows = []
        for path in sorted(self._folder.glob("rank*.json")):
            with suppress(FileNotFoundError):  # its rank has ended
                found = json.loads(path.read_text(encoding="utf-8"))
                rank = path.stem.removeprefix("rank")
                rows += [((rank, kind, source), values) for source, (kind, values) in found.items()]
        for metric in METRICS:
            is_counter = metric.kind == "counter"
            family = self._core.CounterMetricFamily if is_counter else self._core.GaugeMetricFamily
            one = family(metric.name, metric.help, labels=_LABELS)
            for labels, values in rows:
                if metric.name in values:
                    one.add_metric(labels, values[metric.name])
            if one.samples:
                yield one


__all__ = ["Prometheus", "own_folder", "shared_folder"]

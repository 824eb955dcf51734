"""A collective call of a process group as a call on a communicator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gradientflow.communicator import Communicator
from gradientflow.torch import devices

_TENSORS = ("x", "out")  # names of the tensor arguments


@dataclass(frozen=True, slots=True)
class Call:
    """A call on the communicator, with plain tensors, and an action to run when it is done."""

    name: str
    arguments: dict[str, Any]
    finish: Callable[[], object] | None = None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that the call reads and writes."""
        return [self.arguments[name] for name in _TENSORS if name in self.arguments]

    def make(self, communicator: Communicator, form: str = "") -> Any:
        """Make the call in the form "" or "_async"."""
        arguments = self.arguments.copy()
        for name in _TENSORS:
            if name in arguments:
                arguments[name] = devices.shared(arguments[name])
        return getattr(communicator, self.name + form)(**arguments)

    def then(self, store: Callable[[], object]) -> Call:
        """Return the same call, with `store` to run at the end."""

        def finish() -> None:
            if self.finish is not None:
                self.finish()
            store()

        return Call(self.name, self.arguments, finish)

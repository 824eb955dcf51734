"""A state as named tensors, the form that PyTorch's checkpoint functions and `torch.distributed.checkpoint` handle.

A state consists of dictionaries, lists, tensors, numbers, text and None. Its *outline* is the state as JSON, with
tensors and numbers replaced by their positions in the remaining entries.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradientflow.errors import ArgumentError, ArgumentTypeError

from .of_rank import OfRank

_OUTLINE, _NUMBERS = "outline", "numbers"


def named(state: object, rank: int = 0, ranks: int = 1) -> dict[str, OfRank]:
    """Return named tensors with a state: one rank's, or one equal on all ranks.

    Tensors and numbers may differ between ranks, but not shapes, dtypes and outlines.

    Raises
    ------
    gradientflow.errors.ArgumentTypeError
        If the state holds a value of another type.
    """
    tensors: list[torch.Tensor] = []
    numbers: list[int] = []
    outline = json.dumps(_outline(state, tensors, numbers)).encode()
    entries = {_NUMBERS: torch.tensor([_digest(outline), *numbers])}
    entries |= {str(index): tensor for index, tensor in enumerate(tensors)}
    return {
        _OUTLINE: OfRank.part(torch.frombuffer(bytearray(outline), dtype=torch.uint8), 0, 1),
        **{name: OfRank.part(tensor, rank, ranks) for name, tensor in entries.items()},
    }


def states_of(entries: Mapping[str, Any]) -> tuple[list[Any], int | None]:
    """Return the states in named tensors, and the number of ranks that saved them; None if all ranks share one state.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If entries are missing, or an outline is not valid.
    """
    parts = {name: entry.parts if isinstance(entry, OfRank) else {0: entry} for name, entry in entries.items()}
    states = []
    try:
        outline = bytes(parts[_OUTLINE][0].tolist())
        for rank, numbers in sorted(parts[_NUMBERS].items()):
            if numbers[0] != _digest(outline):
                raise ValueError
            tensors = {name: of_each.get(rank) for name, of_each in parts.items()}
            states.append(_filled(json.loads(outline), tensors, numbers.tolist()))
    except (KeyError, IndexError, ValueError) as error:
        raise ArgumentError(
            "the state by name is incomplete: load all entries that get_state_dict() has given places for, saved by "
            "ranks that trained the same parameters"
        ) from error
    saved = entries[_NUMBERS]
    return states, saved.ranks if isinstance(saved, OfRank) else None


def _digest(outline: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(outline, digest_size=7).digest(), "little")


def _outline(value: object, tensors: list[torch.Tensor], numbers: list[int]) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [_outline(each, tensors, numbers) for each in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"entries": {key: _outline(each, tensors, numbers) for key, each in value.items()}}
    if isinstance(value, torch.Tensor):
        if value.numel() == 0:
            return {"empty": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, bool | int | float):
        kind = next(kind for kind in (bool, int, float) if isinstance(value, kind))
        numbers.append(struct.unpack("q", struct.pack("d", value))[0] if kind is float else int(value))
        return {kind.__name__: len(numbers)}  # 1 for the first number: number 0 is the digest of the outline
    raise ArgumentTypeError(
        f"the state of a strategy has a {type(value).__name__}: what can be saved by name are arrays, numbers, text, "
        "None, lists, and dictionaries with text as keys"
    )


def _filled(outline: object, tensors: Mapping[str, torch.Tensor | None], numbers: list[int]) -> object:
    if isinstance(outline, list):
        return [_filled(each, tensors, numbers) for each in outline]
    if not isinstance(outline, dict):
        return outline
    if "entries" in outline:
        return {key: _filled(each, tensors, numbers) for key, each in outline["entries"].items()}
    if "empty" in outline:
        return torch.empty(outline["shape"], dtype=getattr(torch, outline["empty"]))
    if "tensor" in outline:
        tensor = tensors[str(outline["tensor"])]
        if tensor is None:
            raise KeyError(outline["tensor"])
        return tensor.as_subclass(torch.Tensor)
    if "float" in outline:
        return struct.unpack("d", struct.pack("q", numbers[outline["float"]]))[0]
    return bool(numbers[outline["bool"]]) if "bool" in outline else numbers[outline["int"]]


__all__ = ["named", "states_of"]

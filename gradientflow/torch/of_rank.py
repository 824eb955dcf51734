"""Checkpoint entries with a part per rank: `torch.distributed.checkpoint` saves and reads all parts."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem


class OfRank(torch.Tensor):
    """Part of this rank in an entry that has a part for each rank.

    `torch.distributed.checkpoint` sees one tensor with the parts side by side, of which each rank saves its own part.
    Any number of ranks can read the parts, which are dealt to them in turn. The same number of ranks get their own
    parts back, fewer ranks get several parts each, and of more ranks some get no part. A part takes the shape that it
    has in the checkpoint. In all other respects this is a tensor with this rank's part. It is pickled as a plain
    tensor.

    Attributes
    ----------
    parts : dict of int to torch.Tensor
        Parts on this rank, by the ranks that saved them.
    ranks : int
        Number of ranks that have, or saved, a part.
    """

    # Results of operations are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    parts: dict[int, torch.Tensor]
    ranks: int
    _place: tuple[int, int]  # rank of this process, and number of ranks

    @classmethod
    def part(cls, tensor: torch.Tensor, rank: int, ranks: int) -> OfRank:
        """Return a rank's part, in the memory of a tensor."""
        part = tensor.detach().as_subclass(cls)
        part.parts, part.ranks, part._place = {rank: tensor.detach()}, ranks, (rank, ranks)
        return part

    def size(self, dim: int | None = None) -> Any:
        """Return the shape of this part; it compares equal to the size of a saved entry with any number of parts."""
        return _Size(self) if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return 0, as for a number: `set_state_dict` refuses other tensors that are not all on one device."""
        return 0

    def new_empty(self, *shape: Any, **settings: Any) -> OfRank:
        """Return memory for a copy of this part, for example for `async_save`."""
        return super().new_empty(*shape, **settings).as_subclass(OfRank)

    def find(self, saved: torch.Size) -> None:
        """Prepare to read an entry of this size, with its parts along the first dimension."""
        (rank, ranks), self.ranks = self._place, saved[0]
        # Not in the tensor's memory: another entry may use it.
        self.parts = {number: torch.empty(saved[1:], dtype=self.dtype) for number in range(rank, self.ranks, ranks)}

    # ---- the protocol of torch.distributed.checkpoint ------------------------------------------------------------

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        """Return the items that this rank saves."""
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        chunk = self.__create_chunk_list__()[0]
        properties = TensorProperties.create_from_tensor(self.as_subclass(torch.Tensor))
        data = TensorWriteData(chunk, properties, torch.Size((self.ranks, *self.shape)))
        return [WriteItem(MetadataIndex(fqn, chunk.offsets), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Return the positions of this rank's parts in the entry."""
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [
            ChunkStorageMetadata(torch.Size((number, *[0] * part.dim())), torch.Size((1, *part.shape)))
            for number, part in self.parts.items()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """Return a part of this rank."""
        assert index.offset is not None
        return self.parts[index.offset[0]].unsqueeze(0)

    # ---- copies --------------------------------------------------------------------------------------------------

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Reduce to a plain tensor, for pickles."""
        return self.as_subclass(torch.Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, object]) -> OfRank:
        """Return a copy for the same rank."""
        other = OfRank.part(copy.deepcopy(self.as_subclass(torch.Tensor), memo), *self._place)
        other.ranks, other.parts = self.ranks, copy.deepcopy(self.parts, memo)
        memo[id(self)] = other
        return other


class _Size(list[int]):
    """The shape of an `OfRank`: a list, so that a comparison with a `torch.Size` calls this class."""

    def __init__(self, part: OfRank) -> None:
        super().__init__(part.shape)
        self._part = part

    def __ne__(self, saved: object) -> bool:
        """Tell if an entry of this size cannot be read; if it can, prepare the part to read it."""
        if not isinstance(saved, torch.Size) or not saved:
            return True
        self._part.find(saved)
        return False

    def __reduce__(self) -> tuple[object, ...]:
        """Reduce to a `torch.Size`, for pickles."""
        return torch.Size, (tuple(self),)


__all__ = ["OfRank"]

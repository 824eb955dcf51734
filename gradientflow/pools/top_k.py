"""A gradient pool that sends the largest entries of each layer, and keeps the rest: top-k sparsification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gradientflow._location import core
from gradientflow.annotations import State, StateDict, TensorLike
from gradientflow.arguments import checked_float, checked_int, checked_list
from gradientflow.communicator import Communicator
from gradientflow.errors import ArgumentError
from gradientflow.former_names import FormerName, names_of

from .base import native_communicator, native_threshold, stream_number, threshold_from
from .residual import ResidualPool, array_of

Ratios = float | Sequence[float]


class LayerSelection(NamedTuple):
    """The entries of one layer that were sent in the last iteration.

    Attributes
    ----------
    first_tensor, tensors : int
        Index of its first tensor, and number of its tensors.
    elements : int
        Elements of the layer.
    k : int
        Largest number of entries that a rank sends.
    ratio : float
        The compression ratio that gives `k`.
    dense : bool
        True if the whole layer was averaged, because that takes fewer bytes.
    indices : str
        Form of indices in messages: "words" (32 bits each), "offsets" (16 bits each) or "bitmap" (a bit for each
        element).
    sent : int
        Entries that this rank has sent.
    union : int
        Entries that at least one rank has sent.
    threshold : float
        The smallest magnitude that this rank has sent.
    select_seconds : float
        Seconds that this rank took to select the entries.
    message : int
        Index in `TopKGradientPool.reports` of the layer's message.
    ready : float or None
        Time at which the last gradient of the layer was final, on the device or the host, in seconds on the clock of
        `time.monotonic`; None if a gradient was never marked as ready.
    """

    first_tensor: int
    tensors: int
    elements: int
    k: int
    ratio: float
    dense: bool
    indices: str
    sent: int
    union: int
    threshold: float
    select_seconds: float
    message: int
    ready: float | None


class TopKGradientPool(ResidualPool):
    """Gradients of which each rank sends the entries of largest magnitude, layer by layer; the rest stays in residuals.

    Once the tensors of a layer are ready, the thread that calls `ready` (on a CUDA device another thread) adds this
    rank's residual and selects ``k = ceil(n / ratio)`` of the n entries. The selected entries travel in the background,
    as values with their indices, while later layers are computed; the rest is the next residual. After `wait` the views
    have the sum of all entries sent by any rank, divided by the number of ranks, and zeros elsewhere, the same bits on
    all ranks. The entries sent and the new residual add up to the gradient and the old residual, bit for bit: the
    rounding error of `wire` stays in the residual, too. (LAGS-SGD paper, algorithm 1.)

    Layers travel in their order, in messages of at least `merge_bytes`. A layer that takes fewer bytes as a whole than
    as entries is averaged as a whole, with its residual. A single rank selects entries, too.

    Collective: all ranks make the pool with the same arguments. It is closed with `comm`.

    Parameters
    ----------
    comm : Communicator
        Ranks that take part.
    shapes : sequence of int or of sequences of int
        The shape of each tensor. They lie in memory in this order, each at a multiple of 64 bytes; best is the order in
        which backpropagation produces them.
    dtype : {"float32", "float16", "bfloat16"}
        Dtype of all tensors. Residuals are float32.
    ratios : float or sequence of float, default 1000
        The compression ratio of each layer, or one for all: 1 or more. The same on all ranks.
    layers : sequence of int, optional
        Number of consecutive tensors in each layer; by default a tensor is a layer. ``[len(shapes)]`` selects from all
        tensors together.
    selection : {"sampled", "exact", "random"}
        "exact" selects the k largest, among equal entries the first. "sampled" estimates a threshold from a sample of
        the entries, and sends up to k entries, close to k. "random" draws k entries, the same on all ranks.
    threshold_reuse : int, default 0
        Number of iterations, after each that samples, in which the threshold of the previous iteration is reused.
    momentum : float, optional
        Momentum correction, from 0 to below 1: velocities, ``momentum * velocity + gradient``, take the place of
        gradients. The optimizer then has no momentum of its own. (DGC paper, section 3.1.)
    masking : bool, default True
        True if velocities become zero at entries that were sent.
    clip : float, optional
        The gradients of each layer are first scaled down to a norm of ``clip * sqrt(ranks)``: their
        mean over the ranks has a norm of ``clip`` if they are independent. (DGC paper, appendix C, which divides
        gradients by the number of ranks first, and so clips to ``clip / sqrt(ranks)``.)
    wire : {"float32", "float16", "bfloat16"}, optional
        The dtype in which values travel: by default float32, or bfloat16 for gradients of bfloat16.
    algorithm : str, default "auto"
        As in `Communicator.allgather`, or in `Communicator.allreduce` for layers that are averaged as a whole.
    merge_bytes : int or str, default "auto"
        The least bytes of a message, except the last. "auto" is 16 KiB between nodes; inside a node, where ranks read
        entries in place, all layers travel together.
    overlap : bool, default True
        True to select and send entries of a layer as soon as it is ready, False to do so in `wait`.
    seed : int, default 0
        Seed of samples and of random selections.
    extra : int, default 0
        Count of float64 numbers, in the array `extra`, that are averaged with the gradients.
    skip_nonfinite : bool, default False
        True to drop an iteration with infinite or NaN gradients on all ranks, for a loss scale, instead of raising an
        error.
    device : str or int, default "cpu"
        Place of gradients and residuals, and of the selection: memory of the host, or "cuda", or the number of a CUDA
        device.

    Attributes
    ----------
    memory, offsets, nbytes, dtype
        As in `GradientPool`.
    extra : numpy.ndarray
        Numbers that are averaged with the gradients; for `ready` they are tensor ``len(shapes)``.
    merge_bytes : int or float
        The least bytes of a message.
    wire : str or None
        The wire dtype, as given.

    Raises
    ------
    gradientflow.errors.ArgumentError
        If a number is out of range.
    gradientflow.errors.ArgumentTypeError
        If the dtype is not among these three.
    gradientflow.errors.MismatchError
        If the ranks make different pools.

    Examples
    --------
    >>> import gradientflow as gf
    >>> with gf.init() as comm:
    ...     pool = gf.TopKGradientPool(comm, [(784, 2048), (2048,)], ratios=250)
    ...     weights = [np.zeros((784, 2048), np.float32), np.zeros(2048, np.float32)]
    ...     optimizer = gf.optimizers.SGD(pool, weights, lr=0.1)
    ...     for index, view in enumerate(pool.views):
    ...         view[...] = 1.0
    ...         pool.ready(index)
    ...     pool.wait()
    ...     optimizer.step()
    """

    corrects_momentum = False  # the pool corrects momentum itself: the optimizer uses the means as they are
    _native: core.TopKPool
    _kind = "top-k gradient pool"

    def __init__(
        self,
        comm: Communicator,
        shapes: Sequence[int | Sequence[int]],
        dtype: npt.DTypeLike | str = "float32",
        ratios: Ratios = 1000.0,
        *,
        layers: Sequence[int] | None = None,
        selection: str = "sampled",
        threshold_reuse: int = 0,
        momentum: float | None = None,
        masking: bool = True,
        clip: float | None = None,
        wire: str | None = None,
        algorithm: str = "auto",
        merge_bytes: float | str = "auto",
        overlap: bool = True,
        seed: int = 0,
        extra: int = 0,
        skip_nonfinite: bool = False,
        device: str | int = "cpu",
    ) -> None:
        native = native_communicator(comm)
        counts = self._prepare(shapes, dtype, device)
        self.wire = wire
        self._comm = comm
        together = (
            []
            if layers is None
            else [checked_int("layers", each, 1) for each in checked_list("layers", layers, "numbers")]
        )
        self._adopt(
            core.TopKPool(
                native,
                counts,
                self.dtype,
                _ratios(ratios),
                together,
                selection,
                checked_int("threshold_reuse", threshold_reuse, 0),
                None if momentum is None else checked_float("momentum", momentum),
                bool(masking),
                None if clip is None else checked_float("clip", clip),
                wire,
                algorithm,
                native_threshold(merge_bytes, "merge_bytes"),
                bool(overlap),
                checked_int("seed", seed, 0),
                checked_int("extra", extra, 0),
                bool(skip_nonfinite),
                self.device,
            )
        )
        self.merge_bytes: int | float = threshold_from(self._native.merge_bytes)
        self._kept = ("residuals",) if momentum is None else ("residuals", "velocities")

    @property
    def ratios(self) -> tuple[float, ...]:
        """The compression ratio of each layer. Between iterations it can be changed, to the same value on all ranks."""
        return tuple(self._native.ratios)

    @ratios.setter
    def ratios(self, ratios: Ratios) -> None:
        self._native.ratios = _ratios(ratios)

    def wait(self, timeout: float | None = None, stream: object = None) -> None:
        """Wait until the views have the means of the entries that ranks have sent, and start the next iteration.

        Tensors that are not ready on this rank count as zeros; at least one tensor must be ready on some rank. On a
        CUDA device the host waits for the device: entries pass through the host's memory.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; by default the timeout of the calls themselves.
        stream : optional
            As in `ready`.

        Raises
        ------
        gradientflow.errors.ArgumentError
            On every rank, if no rank has made any tensor ready in this iteration.
        gradientflow.errors.NonFiniteError
            On every rank, if a gradient is infinite or NaN, unless `skip_nonfinite`.
        gradientflow.errors.MismatchError
            On every rank, if the ranks have different ratios or loss scales.
        gradientflow.errors.CommunicationTimeoutError
            If the timeout passed first: the iteration continues, and `wait` can be called again. Or if ranks are
            missing.
        gradientflow.errors.ClosedError
            If the pool or its communicator is closed.

        Notes
        -----
        After the first three errors gradients are zero, and residuals and velocities are as before the iteration.
        """
        self._native.wait(timeout, stream_number(stream))

    def update(self, everywhere: bool = True) -> TensorLike:
        """Return the input of a step of the core's optimizers: all gradients, with zeros where no entry was sent.

        Raises
        ------
        gradientflow.errors.ArgumentError
            Unless the gradients are averaged, that is after `wait` and before the next tensor is ready.
        """
        return self._native.update()

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """The elements of the memory that a step uses: a row with the first and one past the last, or no row."""
        return np.array([[0, self.nbytes // self._itemsize]] * (not self.overflowed)).reshape(-1, 2)

    layer_reports = FormerName("layer_selections")

    @property
    def layer_selections(self) -> tuple[LayerSelection, ...]:
        """The selection of each layer in the last iteration; empty before the first, and after a failed iteration."""
        return tuple(LayerSelection(*layer) for layer in self._native.layer_selections)

    @property
    def velocities(self) -> tuple[npt.NDArray[np.float32], ...]:
        """The velocities of this rank, by tensor: copies; none without momentum."""
        flat = self._native.velocities
        return () if flat is None else self._by_tensor(flat)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def consolidated_state_dict(self) -> StateDict:
        """Return the sums over the ranks of residuals and velocities, and the iteration. Collective.

        As in `SparseGradientPool`. The state has no thresholds: they are each rank's own, and are estimated again.
        """
        return {**super().consolidated_state_dict(), "thresholds": np.zeros(0, np.float32)}

    def _own_state(self) -> dict[str, object]:
        return {"thresholds": np.asarray(self._native.thresholds, np.float32)}

    def _check_own_state(self, state: Mapping[str, object]) -> None:
        thresholds = array_of("thresholds", state["thresholds"])
        if thresholds.ndim != 1 or not (np.isfinite(thresholds) & (thresholds >= 0)).all():
            raise ArgumentError(f"thresholds is a row of numbers of 0 or more, not {state['thresholds']!r}")

    def _restore(self, state: State, kept: Sequence[npt.NDArray[np.float32]]) -> None:
        """Load a checked state; if its layers differ from the pool's, thresholds are estimated again."""
        thresholds = np.asarray(state["thresholds"], np.float32)
        if state["rank"] is None or len(thresholds) != len(self.ratios):
            thresholds = thresholds[:0]
        velocities = kept[1] if len(kept) > 1 else np.zeros(0, np.float32)
        self._native.restore(kept[0], velocities, thresholds, int(state["iteration"]))


def _ratios(ratios: Ratios) -> list[float]:
    if np.ndim(ratios) == 0:
        return [checked_float("ratios", ratios)]
    return [checked_float("ratios", each) for each in checked_list("ratios", ratios, "numbers")]


__all__ = ["LayerSelection", "TopKGradientPool"]
__getattr__ = names_of(__name__)

"""Adapters at the authors' size, fitted on a card, and networks that are adapters already."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from .. import _rehang
from .._arrays import column, matrix
from .._call import Bar
from .._verbs import Adapter, Distance
from ..errors import Error, MismatchError, OptionError
from .heads import Head
from .losses import FastFill, UncertaintyHead

Geometry = Literal["raw", "sphere"]
Pairs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]

NORMALISED_TOLERANCE = 2e-3


class AdapterNetwork(torch.nn.Module):
    """The network of FCT and FastFill (appendix A.2): two branches, side by side into a mixer, of blocks ``Linear → BatchNorm → ReLU``.

    The branches are ``d → f·d → f·d_new`` with ``f = branch_factor``, the first on the old vector, the second on side information, or on the old
    vector again; the mixer has two blocks of ``hidden`` units and a last layer to ``d_new``. At ``d = 128`` it has 5,712,000 parameters.
    """

    def __init__(self, d_old: int, d_new: int, *, d_side: int | None = None, hidden: int = 2048, branch_factor: int = 2) -> None:
        super().__init__()

        def blocks(*widths: int) -> list[torch.nn.Module]:
            parts: list[torch.nn.Module] = []
            for inputs, outputs in zip(widths, widths[1:], strict=False):
                parts += [torch.nn.Linear(inputs, outputs, bias=False), torch.nn.BatchNorm1d(outputs), torch.nn.ReLU()]
            return parts

        second, wide = d_old if d_side is None else d_side, branch_factor * d_new
        self.reads_side = d_side is not None
        self.branch = torch.nn.Sequential(*blocks(d_old, branch_factor * d_old, wide))
        self.second = torch.nn.Sequential(*blocks(second, branch_factor * second, wide))
        self.mixer = torch.nn.Sequential(*blocks(2 * wide, hidden, hidden), torch.nn.Linear(hidden, d_new))

    def forward(self, old: torch.Tensor, side: torch.Tensor | None = None) -> torch.Tensor:
        """``old [B, d_old]``, ``side [B, d_side]`` → ``[B, d_new]``, as they come out: no length is changed."""
        if self.reads_side and side is None:
            raise OptionError("side: this network reads side information")
        both = [self.branch(old), self.second(side if self.reads_side else old)]
        return self.mixer(torch.cat(both, dim=1))


def fit_adapter(
    old: Any,
    new: Any = None,
    *,
    labels: Any = None,
    side: Any = None,
    method: Literal["fct", "fastfill-reference"] = "fct",
    head: Head | None = None,
    loss: FastFill | None = None,
    epochs: int = 80,
    batch: int = 1024,
    learning_rate: float = 5e-4,
    weight_decay: float = 2**-15,
    warm_up_epochs: int = 5,
    freeze_statistics_from: int = 40,
    uncertainty_warm_up: int = 0,
    hidden: int = 2048,
    branch_factor: int = 2,
    device: Any = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    geometry: Geometry = "raw",
    distance: Distance = "l2",
    old_distance: Distance | None = None,
    old_model: str = "old",
    new_model: str = "new",
    handicap: float = 0.0,
    progress: bool | None = None,
) -> Adapter:
    """Learn the map of FCT or FastFill by the published recipe, on any device; the adapter is one that every other verb takes.

    Adam, coupled weight decay, a linear warm-up and half a cosine by the epoch, BatchNorm on its running statistics from
    ``freeze_statistics_from`` on. It is the recipe of ``rehang.fit(method=…)``; weights and order are drawn by PyTorch, so the bytes are others.
    Nothing is held out and no handicap is measured: ``rehang.report`` compares the adapter on a gallery that it has not seen.

    Parameters
    ----------
    old, new : array or path, ``[n, d_old]`` and ``[n, d_new]``
        Vectors of the same items by both models; they are kept on the device. Or, in the place of ``old``, an iterable as a ``DataLoader``
        that gives ``(old, new)``, ``(old, new, labels)`` or ``(old, new, labels, side)`` batches anew in each epoch, with augmentation or without; then
        ``batch`` is its own, and a batch of a single row is passed over.
    labels, side : array, optional
        Classes ``[n]`` for the discriminative part, negative where not known; side information ``[n, d_side]`` for the second branch.
    method : str
        ``fct``, or ``fastfill-reference``: with ψ, and with L_disc where ``head`` is given.
    head : Head, optional
        κ_new, the new model's head.
    loss : FastFill, optional
        Another loss than the method's own.
    uncertainty_warm_up : int
        Epochs in which the map learns from the plain loss while ψ follows; 0 as published.
    device : str or torch.device, optional
        A card where there is one.
    dtype : torch.dtype
        ``torch.bfloat16`` or ``torch.float16`` for mixed precision; the loss stays in single precision.
    geometry : str
        ``raw`` as published, or ``sphere`` to put outputs at length 1.
    handicap : float
        What searches add to the distance of adapted vectors, where the caller has measured it.

    Returns
    -------
    Adapter
        ``adapter.answer["history"]`` is the loss by epoch, ``["seconds"]`` what each took. σ² is ψ's where it was trained, else the mean squared error of the pairs for every item.
    """
    if method not in ("fct", "fastfill-reference"):
        raise OptionError(f"method: {method!r} is neither fct nor fastfill-reference")
    if epochs < 1 or batch < 2:
        raise OptionError(f"epochs, batch: {epochs} and {batch}; at least 1 epoch and 2 rows a batch are needed (BatchNorm needs two rows)")
    if loss is not None and loss.reduction != "mean":
        raise OptionError(f"loss: its reduction is {loss.reduction!r}; a step follows the mean of its batch")
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    data: _Batches
    if new is None:
        data = _Loaded(old, device)
    else:
        data = _Given(old, new, labels, side, batch, device, seed)
    d_old, d_new, d_side = data.widths
    criterion = loss or FastFill(head=head if method != "fct" else None)
    criterion = criterion.to(device)
    uncertain = method != "fct"
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = AdapterNetwork(d_old, d_new, d_side=d_side, hidden=hidden, branch_factor=branch_factor).to(device)
        psi = UncertaintyHead(d_new).to(device) if uncertain else None
    parameters = [*network.parameters(), *(psi.parameters() if psi is not None else ())]
    adam = torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=device.type == "cuda" or None)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    history: list[float] = []
    seconds: list[float] = []
    with Bar(progress) as bar:
        for epoch in range(epochs):
            began = time.monotonic()
            for group in adam.param_groups:
                group["lr"] = scheduled_rate(learning_rate, epoch, epochs, warm_up_epochs)
            network.train(epoch < freeze_statistics_from)
            total, rows = torch.zeros((), dtype=torch.float64, device=device), 0
            for old_rows, new_rows, label, side_rows in data.epoch(epoch):
                with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                    adapted = network(old_rows, side_rows)
                warm_up = epoch < uncertainty_warm_up
                s = None if psi is None else psi(adapted.detach() if warm_up else adapted)
                value = criterion(adapted, new_rows, label, s, warm_up=warm_up)
                adam.zero_grad(set_to_none=True)
                scaler.scale(value).backward()
                scaler.step(adam)
                scaler.update()
                total += value.detach().double() * len(old_rows)
                rows += len(old_rows)
            history.append(float(total) / max(rows, 1))
            seconds.append(time.monotonic() - began)
            if not math.isfinite(history[-1]):
                raise Error(f"the loss left the finite numbers in epoch {epoch}; a smaller learning_rate may help")
            if bar.show is not None:
                bar.show("fitting", "epochs", f"loss {history[-1]:.5f}", epoch + 1, epochs)
    old_array, new_array, side_array = data.arrays()
    choices = {
        "epochs": epochs, "batch": batch, "learning_rate": learning_rate, "weight_decay": weight_decay,
        "warm_up_epochs": warm_up_epochs, "freeze_statistics_from": freeze_statistics_from, "uncertainty_warm_up": uncertainty_warm_up,
        "hidden": hidden, "branch_factor": branch_factor, "dtype": str(dtype).removeprefix("torch."), "trainer": f"torch {torch.__version__}",
    }  # fmt: skip
    adapter = to_adapter(
        network, old_array, new_array, side=side_array, uncertainty=psi, geometry=geometry, distance=distance, old_distance=old_distance,
        old_model=old_model, new_model=new_model, handicap=handicap, method=method, seed=seed, choices=choices,
    )  # fmt: skip
    adapter.answer = {"history": history, "seconds": seconds}
    return adapter


def scheduled_rate(rate: float, epoch: int, epochs: int, warm_up_epochs: int) -> float:
    """The learning rate of an epoch, counted from 0: ``rate·(e + 1)/w`` in the warm-up, then half a cosine."""
    if epoch < warm_up_epochs:
        return rate * (epoch + 1) / warm_up_epochs
    rest = epochs - warm_up_epochs
    return rate if rest <= 0 else 0.5 * (1 + math.cos(math.pi * (epoch - warm_up_epochs) / rest)) * rate


def to_adapter(
    network: torch.nn.Module,
    old: Any,
    new: Any,
    *,
    side: Any = None,
    uncertainty: UncertaintyHead | float | None = None,
    geometry: Geometry = "raw",
    distance: Distance = "l2",
    old_distance: Distance | None = None,
    old_model: str = "old",
    new_model: str = "new",
    handicap: float = 0.0,
    method: str = "torch",
    seed: int = 0,
    choices: dict[str, Any] | None = None,
) -> Adapter:
    """A trained network as an adapter: BatchNorm's running statistics are folded into weights and biases.

    Parameters
    ----------
    network : AdapterNetwork, ForwardHead or Sequential
        An ``AdapterNetwork``, or a ``Sequential`` of ``Linear``, ``BatchNorm1d`` and ``ReLU``, as DMU's ψ is.
    old, new : array, ``[n, d_old]`` and ``[n, d_new]``
        The pairs that it was trained on: the adapter keeps what its inputs look like, and which rows it has seen.
    uncertainty : UncertaintyHead or float, optional
        ψ, or one σ² for every item; by default the mean squared error over the pairs.
    """
    if geometry not in ("raw", "sphere"):
        raise OptionError(f"geometry: {geometry!r} is neither raw nor sphere")
    old, new = _single("old", old), _single("new", new)
    if len(old) != len(new):
        raise MismatchError(f"old has {len(old)} rows and new {len(new)}; both have to be of the same items")
    parts: list[tuple[str, npt.NDArray[np.float32]]] = []

    def stack(name: str, layers: torch.nn.Sequential) -> list[bool]:
        folded = _folded(layers)
        for place, (weight, bias, _) in enumerate(folded):
            parts.extend([(f"{name}.{place}.weight", weight), (f"{name}.{place}.bias", bias)])
        return [relu for _, _, relu in folded]

    outline: dict[str, Any] = {"input": "as-is", "branch": [], "second": None, "skip": False, "kernel": False}
    if isinstance(network, AdapterNetwork):
        outline["branch"] = stack("branch", network.branch)
        reads = "side" if network.reads_side else "old"
        outline["second"] = {"input": reads, "layers": stack("second", network.second)}
        outline["mixer"] = stack("mixer", network.mixer)
    elif isinstance(network, torch.nn.Sequential):
        outline["mixer"] = stack("mixer", network)
    else:
        raise OptionError("network: an AdapterNetwork, or a Sequential of Linear, BatchNorm1d and ReLU, is needed")
    if geometry == "sphere":
        mean = new.astype(np.float64).mean(axis=0)
        length = np.linalg.norm(mean)
        fallback = mean / length if length > 0 else np.eye(1, new.shape[1])[0]
        parts.append(("geometry.fallback", fallback.astype(np.float32)))
    if isinstance(uncertainty, UncertaintyHead):
        kind = "linear"
        parts.append(("uncertainty.weight", _numbers(uncertainty.weight)[0].copy()))
        parts.append(("uncertainty.bias", _numbers(uncertainty.bias)))
    else:
        kind = "constant"
        variance = 1.0 if uncertainty is None else float(uncertainty)
        parts.append(("uncertainty.variance", np.array([variance], dtype=np.float32)))

    def space(model: str, rows: npt.NDArray[np.float32], measured: str) -> str:
        lengths = np.linalg.norm(rows, axis=1)
        normalised = bool((np.abs(lengths - 1) <= NORMALISED_TOLERANCE).all())
        return json.dumps({"model": model, "dimension": rows.shape[1], "distance": measured, "normalised": normalised})

    metadata = {
        "rehang_version": _rehang.__version__,
        "old_space": space(old_model, old, old_distance or distance),
        "new_space": space(new_model, new, distance),
        "map": json.dumps(outline),
        "geometry": geometry,
        "uncertainty": kind,
        "method": method,
        "seed": str(seed),
        "pairs": str(len(old)),
        "inputs": "{}",
        "hyper_parameters": json.dumps({name: str(value) for name, value in (choices or {}).items()}),
    }
    if handicap > 0:
        metadata["handicap"] = repr(float(handicap))
    adapter = Adapter(_rehang.Adapter.from_parts(metadata, parts, old))
    if kind == "constant" and uncertainty is None:
        # Measured through the adapter itself, so that every part of it counts.
        error = _mean_squared_error(adapter, old, new, None if side is None else _single("side", side), network)
        return to_adapter(
            network, old, new, side=side, uncertainty=max(error, float(np.finfo(np.float32).tiny)), geometry=geometry, distance=distance,
            old_distance=old_distance, old_model=old_model, new_model=new_model, handicap=handicap, method=method, seed=seed,
            choices=choices,
        )  # fmt: skip
    return adapter


def _mean_squared_error(
    adapter: Adapter,
    old: npt.NDArray[np.float32],
    new: npt.NDArray[np.float32],
    side: npt.NDArray[np.float32] | None,
    network: torch.nn.Module,
) -> float:
    """Over the pairs, on the device of the network."""
    device = next(network.parameters()).device
    module, total = adapter.to_torch().to(device), 0.0
    with torch.no_grad():
        for first in range(0, len(old), 65_536):
            rows = slice(first, first + 65_536)
            given = [torch.from_numpy(part[rows]).to(device) for part in (old, side) if part is not None]
            target = torch.from_numpy(new[rows]).to(device)
            total += float((module(*given)[0] - target).double().square().sum())
    return total / max(len(old), 1)


def _folded(layers: torch.nn.Sequential) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], bool]]:
    """Weight, bias and ReLU of every layer, with BatchNorm inside."""
    folded: list[tuple[Any, Any, bool]] = []
    for layer in layers:
        if isinstance(layer, torch.nn.Linear):
            weight = _double(layer.weight)
            bias = np.zeros(len(weight)) if layer.bias is None else _double(layer.bias)
            folded.append((weight, bias, False))
            continue
        if not folded or folded[-1][2]:
            raise OptionError(f"network: {type(layer).__name__} stands where a Linear is needed")
        weight, bias, _ = folded[-1]
        if isinstance(layer, torch.nn.BatchNorm1d) and layer.running_mean is not None:
            mean, variance = _double(layer.running_mean), _double(layer.running_var)
            scale = np.ones(len(weight)) if layer.weight is None else _double(layer.weight)
            shift = np.zeros(len(weight)) if layer.bias is None else _double(layer.bias)
            slope = scale / np.sqrt(variance + layer.eps)
            folded[-1] = (weight * slope[:, None], (bias - mean) * slope + shift, False)
        elif isinstance(layer, torch.nn.ReLU):
            folded[-1] = (weight, bias, True)
        else:
            raise OptionError(f"network: {type(layer).__name__} is none of Linear, BatchNorm1d with running statistics, ReLU")
    return [(np.ascontiguousarray(w, np.float32), np.ascontiguousarray(b, np.float32), relu) for w, b, relu in folded]


def _double(numbers: torch.Tensor) -> npt.NDArray[np.float64]:
    return np.asarray(numbers.detach().double().cpu().numpy())


def _numbers(numbers: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(numbers.detach().float().cpu().numpy())


def _single(name: str, given: Any) -> npt.NDArray[np.float32]:
    rows = matrix(name, given)
    if isinstance(rows, str):
        rows = _read(rows)
    return np.ascontiguousarray(rows, dtype=np.float32)


def _read(path: str) -> npt.NDArray[Any]:
    if not path.endswith(".npy"):
        raise OptionError(f"{path}: rehang.torch reads .npy files here; give an array of anything else")
    return np.asarray(np.load(path, mmap_mode="r"))


class _Batches:
    """Pairs, an epoch at a time."""

    widths: tuple[int, int, int | None]

    def epoch(self, number: int) -> Iterator[Pairs]:
        """The batches of an epoch, on the device."""
        raise NotImplementedError

    def arrays(self) -> tuple[Any, Any, Any]:
        """All old and new vectors, and side information."""
        raise NotImplementedError


class _Given(_Batches):
    """Pairs that are kept on the device."""

    def __init__(self, old: Any, new: Any, labels: Any, side: Any, batch: int, device: torch.device, seed: int) -> None:
        self._arrays = (_single("old", old), _single("new", new), None if side is None else _single("side", side))
        self._batch, self._seed = batch, seed
        count = len(self._arrays[0])
        classes = None if labels is None else column("labels", labels)
        if isinstance(classes, str):
            classes = _read(classes)
        for name, part in (("new", self._arrays[1]), ("labels", classes), ("side", self._arrays[2])):
            if part is not None and len(part) != count:
                raise MismatchError(f"old has {count} rows and {name} {len(part)}; all have to be of the same items")
        if count < 2:
            raise OptionError(f"old: {count} pairs; at least 2 are needed (BatchNorm needs two rows)")
        for name, array in (("old", self._arrays[0]), ("new", self._arrays[1]), ("side", self._arrays[2])):
            if array is not None and not np.isfinite(array).all():
                raise OptionError(f"{name}: row {int((~np.isfinite(array)).any(axis=1).argmax())} holds a number that is NaN or infinite")
        self._old, self._new = (torch.from_numpy(part).to(device) for part in self._arrays[:2])
        given_side = self._arrays[2]
        self._side = None if given_side is None else torch.from_numpy(given_side).to(device)
        self._labels = None if classes is None else torch.from_numpy(np.asarray(classes).astype(np.int64)).to(device)
        self.widths = (self._old.shape[1], self._new.shape[1], None if self._side is None else self._side.shape[1])

    def epoch(self, number: int) -> Iterator[Pairs]:
        """In a random order; a single row that is left over joins the step before."""
        generator = torch.Generator(device=self._old.device).manual_seed(self._seed * 1_000_003 + number)
        order = torch.randperm(len(self._old), generator=generator, device=self._old.device)
        steps = list(order.split(self._batch))
        if len(steps) > 1 and len(steps[-1]) == 1:
            steps[-2:] = [torch.cat(steps[-2:])]
        for rows in steps:
            parts = (self._old, self._new, self._labels, self._side)
            old, new, labels, side = (None if part is None else part[rows] for part in parts)
            yield old, new, labels, side

    def arrays(self) -> tuple[Any, Any, Any]:
        return self._arrays


class _Loaded(_Batches):
    """Pairs that a loader gives; the first epoch's are kept, since an adapter says what it was fitted on."""

    def __init__(self, loader: Iterable[Any], device: torch.device) -> None:
        if not hasattr(loader, "__iter__") or hasattr(loader, "shape") or isinstance(loader, str):
            raise OptionError("new: it is missing; without it `old` is a DataLoader of (old, new) batches")
        self._loader, self._device = loader, device
        self._kept: list[tuple[Any, Any, Any]] = []
        first = next(iter(loader), None)
        if first is None:
            raise OptionError("old: the loader gives no batch")
        old, new, _, side = self._batch(first)
        self.widths = (old.shape[1], new.shape[1], None if side is None else side.shape[1])

    def _batch(self, given: Any) -> Pairs:
        old, new, labels, side = (*given, None, None)[:4]
        rows = [None if part is None else torch.as_tensor(part).to(self._device, torch.float32, non_blocking=True) for part in (old, new, side)]
        classes = None if labels is None else torch.as_tensor(labels).to(self._device, torch.int64, non_blocking=True)
        return rows[0], rows[1], classes, rows[2]

    def epoch(self, number: int) -> Iterator[Pairs]:
        """As the loader gives them."""
        for given in self._loader:
            batch = self._batch(given)
            if number == 0:
                self._kept.append((_numbers(batch[0]), _numbers(batch[1]), None if batch[3] is None else _numbers(batch[3])))
            if len(batch[0]) > 1:
                yield batch

    def arrays(self) -> tuple[Any, Any, Any]:
        old, new, side = zip(*self._kept, strict=True)
        return np.concatenate(old), np.concatenate(new), None if side[0] is None else np.concatenate(side)

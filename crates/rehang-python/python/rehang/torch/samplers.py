"""Which rows make a batch, whose old vectors are positives, and what is backfilled first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from . import distributed
from .heads import Head


class BalancedBatches(torch.utils.data.Sampler):
    """Batches of ``classes`` different classes with ``items`` rows of each, for losses that need rows of the same class and of others.

    A ``batch_sampler`` of a ``DataLoader``. A class with fewer rows, and the rest of one that does not divide, is filled up with rows of the
    class; classes are drawn so that the largest is never left alone, and every row comes at least once an epoch. A class of a single row
    has no partner and is left out (``left_out``). Where a process group is there, each process gets every so-many-th batch, and all get
    equally many.

    Parameters
    ----------
    labels : ``[n]``
    classes, items : int
        At least 2 each.
    seed : int
        Batches are a function of it and of the epoch; :meth:`set_epoch` says which one comes next, which is the next one by default.
    """

    def __init__(self, labels: Any, *, classes: int, items: int, seed: int = 0) -> None:
        if classes < 2 or items < 2:
            raise ValueError(f"classes, items: {classes} and {items}; at least 2 of each are needed")
        numbers = np.asarray(labels)
        rows = [np.flatnonzero(numbers == label) for label in np.unique(numbers)]
        self._rows = [of_class for of_class in rows if len(of_class) > 1]
        self.left_out = sorted(int(of_class[0]) for of_class in rows if len(of_class) == 1)
        if classes > len(self._rows):
            raise ValueError(f"classes: {classes} is more than the {len(self._rows)} classes that have two rows or more")
        self.classes, self.items, self.seed, self.epoch = classes, items, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch comes next."""
        self.epoch = epoch

    def batches(self, epoch: int) -> list[list[int]]:
        """All batches of an epoch, of every process."""
        random = np.random.default_rng([self.seed, epoch])
        groups = [self._groups(rows, random) for rows in self._rows]
        made = []
        while any(groups):
            order = random.permutation(len(groups))
            # The classes with most groups left go first, so that the end of an epoch is not one class alone.
            chosen = sorted(order, key=lambda place: -len(groups[place]))[: self.classes]
            batch: list[int] = []
            for place in chosen:
                group = groups[place].pop() if groups[place] else self._filled([], self._rows[place], random)
                batch += group
            made.append(batch)
        return [made[place] for place in random.permutation(len(made))]

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.batches(self.epoch)
        self.epoch += 1
        world, rank = distributed.world(), torch.distributed.get_rank() if distributed.world() > 1 else 0
        whole = len(batches) // world * world
        return iter(batches[rank:whole:world])

    def __len__(self) -> int:
        return len(self.batches(self.epoch)) // distributed.world()

    def _groups(self, rows: npt.NDArray[np.int64], random: np.random.Generator) -> list[list[int]]:
        order = [int(row) for row in random.permutation(rows)]
        groups = [order[first : first + self.items] for first in range(0, len(order), self.items)]
        groups[-1] = self._filled(groups[-1], rows, random)
        return groups

    def _filled(self, group: list[int], rows: npt.NDArray[np.int64], random: np.random.Generator) -> list[int]:
        others = [int(row) for row in random.permutation(rows) if row not in group]
        group = group + others[: self.items - len(group)]
        return group + [int(row) for row in random.choice(rows, self.items - len(group))]


class Positives:
    """RACT's pre-sampler of positives (table 6): for each row another row of its class, drawn anew in each epoch; itself where it is alone.

    ``old[positives(rows, epoch)]`` is the ``sister`` of :class:`rehang.torch.Contrast`.
    """

    def __init__(self, labels: Any, seed: int = 0) -> None:
        self._labels, self._seed = np.asarray(labels), seed
        self._order = np.argsort(self._labels, kind="stable")
        names, self._first, self._count = np.unique(self._labels[self._order], return_index=True, return_counts=True)
        self._class = np.searchsorted(names, self._labels)
        self._place = np.empty(len(self._order), dtype=np.int64)
        self._place[self._order] = np.arange(len(self._order))

    def __call__(self, rows: Any, epoch: int) -> npt.NDArray[np.int64]:
        """``rows [B]`` → ``[B]``; a function of the seed, the epoch and the row."""
        rows = np.asarray(rows)
        of_class = self._class[rows]
        first, count = self._first[of_class], self._count[of_class]
        drawn = np.array([np.random.default_rng([self._seed, epoch, int(row)]).random() for row in rows])
        others = np.minimum((drawn * (count - 1)).astype(np.int64), np.maximum(count - 2, 0))
        own = self._place[rows] - first
        # One that is alone has no other, and looks at its own place.
        place = np.where(count > 1, others + (others >= own), own)
        return np.asarray(self._order[first + place])


def refresh_order(
    policy: Literal["least-confidence", "margin", "entropy"],
    head: Head,
    old: torch.Tensor | Sequence[torch.Tensor],
    *,
    batch: int = 65_536,
) -> npt.NDArray[np.int64]:
    """The hot-refresh order of RACT (9, 10, 11): what the NEW classifier says of OLD vectors, the most doubtful first.

    It is computed where the head is, and is the order of ``rehang.order(policy, adapted=old, head_weight=…)``: with the p of softmax,
    ``least-confidence`` is 1 − p¹, ``margin`` 1 − (p¹ − p²), ``entropy`` −Σ p log p; equal ones by row.

    Parameters
    ----------
    old : ``[n, d]``
        A tensor on any device, or a list of such.
    """
    if policy not in ("least-confidence", "margin", "entropy"):
        raise ValueError(f"policy: {policy!r} is none of least-confidence, margin, entropy")
    parts = [old] if isinstance(old, torch.Tensor) else list(old)
    scores = []
    with torch.no_grad():
        for part in parts:
            for rows in part.split(batch):
                log_p = torch.log_softmax(head(rows.to(head.weight.device)).double(), dim=1)
                if policy == "entropy":
                    scores.append(-(log_p.exp() * log_p).sum(dim=1))
                    continue
                best = log_p.topk(min(2, log_p.shape[1]), dim=1).values.exp()
                second = best[:, 1] if best.shape[1] > 1 and policy == "margin" else 0.0
                scores.append(1 - (best[:, 0] - second))
        order = torch.cat(scores).sort(descending=True, stable=True).indices
    return np.asarray(order.cpu().numpy())

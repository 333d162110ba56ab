"""What losses need of other processes: their rows, and how many of them count.

With ``DistributedDataParallel`` each process has a share of the batch, and gradients are averaged over the processes. A loss here is a
mean over the whole batch: each process gives its rows' part of it, times the number of processes, so that the average is the gradient of
the whole. Without a process group everything is of this process alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed


def world() -> int:
    """Processes that train together; 1 without a process group."""
    is_there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size()) if is_there else 1


def gathered(rows: torch.Tensor) -> torch.Tensor:
    """The rows of all processes one below the other, in the order of their ranks; they may have different numbers of them.

    Derivatives flow back to the process that each row came from.
    """
    if world() == 1:
        return rows
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(world())]
    torch.distributed.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    sizes = [int(count) for count in counts]
    parts = _Gathered.apply(_filled(rows, max(sizes)))
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def summed(value: torch.Tensor) -> torch.Tensor:
    """The sum of a number over all processes; no derivative flows."""
    value = value.detach().clone()
    if world() > 1:
        torch.distributed.all_reduce(value)
    return value


def mean(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The mean of the values that count, over the rows of all processes; 0 where none does.

    The average of what the processes get is that mean.
    """
    number = summed(counts.sum().to(values.dtype)).clamp(min=1.0)
    return torch.where(counts, values, 0.0).sum() * (world() / number)


def reduced(values: torch.Tensor, counts: torch.Tensor, reduction: str) -> torch.Tensor:
    """The ``mean`` of the values that count, their ``sum``, or with ``none`` each value of this process, 0 where it does not count.

    The average of what the processes get is the sum over all of them, too.
    """
    if reduction == "mean":
        return mean(values, counts)
    values = torch.where(counts, values, 0.0)
    return values if reduction == "none" else values.sum() * world()


def _filled(rows: torch.Tensor, count: int) -> torch.Tensor:
    if len(rows) == count:
        return rows.contiguous()
    return torch.cat([rows, rows.new_zeros((count - len(rows), *rows.shape[1:]))])


class _Gathered(torch.autograd.Function):
    """Rows of this process → those of all, and the way back: the sum of what every process says of them."""

    @staticmethod
    def forward(context: Any, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows) for _ in range(world())]
        torch.distributed.all_gather(parts, rows)
        return torch.stack(parts)

    @staticmethod
    def backward(context: Any, slopes: torch.Tensor) -> torch.Tensor:
        return _Returned.apply(slopes)


class _Returned(torch.autograd.Function):
    """The way back of :class:`_Gathered`, which has it as its own way back."""

    @staticmethod
    def forward(context: Any, slopes: torch.Tensor) -> torch.Tensor:
        whole = slopes.contiguous().clone()
        torch.distributed.all_reduce(whole)
        return whole[torch.distributed.get_rank()]

    @staticmethod
    def backward(context: Any, rows: torch.Tensor) -> torch.Tensor:
        return _Gathered.apply(rows.contiguous())

"""Rows as heads and losses read them: in full precision, at length 1, as wide as others."""

from __future__ import annotations

from typing import Any

import torch


def exactly(rows: torch.Tensor) -> Any:
    """Within it autocast is off: losses are computed in the precision of their inputs, or in single precision."""
    return torch.autocast(device_type=rows.device.type, enabled=False)


def wide(rows: torch.Tensor) -> torch.Tensor:
    """Half precision as single; single and double as they are."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def unit(rows: torch.Tensor, given: torch.dtype | None = None) -> torch.Tensor:
    """Rows at length 1, ``v / max(‖v‖, ε)``; a row that is no longer than ε, as a zero row, passes no derivative.

    ε is 1e-12, as that of ``torch.nn.functional.normalize``; 1e-3 for rows that were ``given`` in ``float16``, since a derivative grows as ``1/‖v‖``
    and has to go back into numbers that end at 65,504.
    """
    least = 1e-3 if (rows.dtype if given is None else given) == torch.float16 else 1e-12
    squares = rows.square().sum(dim=-1, keepdim=True)
    is_long = squares > least**2
    return torch.where(is_long, rows * torch.where(is_long, squares, 1.0).rsqrt(), rows.detach() / least)


def as_wide_as(rows: torch.Tensor, width: int) -> torch.Tensor:
    """The first ``width`` coordinates of every row, or the row and zeros (BCT §3.6)."""
    own = rows.shape[-1]
    return rows[..., :width] if own >= width else torch.nn.functional.pad(rows, (0, width - own))


def held(rows: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Rows clamped, while derivatives pass as if they were not: what the losses written in Rust do at the ends of a cosine."""
    return rows + (rows.clamp(low, high) - rows).detach()

"""The methods where encoders are trained: losses, adapters at the authors' size, and galleries through a graphics card.

Needs PyTorch, which ``rehang`` itself does not: ``pip install torch``. The losses are those of the laboratory's trainer (Rust, the exact reference on the
processor), and adapters are files that every verb takes.

>>> import torch, rehang.torch as rt
>>> head = rt.Head(10, 16, form="arcface")
>>> old, labels = torch.randn(32, 16), torch.arange(32) % 10
>>> new = torch.randn(32, 16, requires_grad=True)
>>> loss = rt.Classification()(new, labels, head) + rt.Contrast()(new, old, labels)
>>> loss.backward()
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError("rehang.torch needs PyTorch: pip install torch") from error

from . import distributed
from ._fit import AdapterNetwork, fit_adapter, to_adapter
from ._transform import transform
from .heads import ForwardHead, Head, synthesised
from .losses import (
    BothHeads,
    Classification,
    Contrast,
    FastFill,
    FocalDistillation,
    ForwardAdaptive,
    HeadDistillation,
    Influence,
    LambdaOrthogonality,
    Regression,
    Selective,
    Triplet,
    UncertaintyHead,
    VectorDistance,
    selection_weights,
)
from .samplers import BalancedBatches, Positives, refresh_order

__all__ = [
    "AdapterNetwork",
    "BalancedBatches",
    "BothHeads",
    "Classification",
    "Contrast",
    "FastFill",
    "FocalDistillation",
    "ForwardAdaptive",
    "ForwardHead",
    "Head",
    "HeadDistillation",
    "Influence",
    "LambdaOrthogonality",
    "Positives",
    "Regression",
    "Selective",
    "Triplet",
    "UncertaintyHead",
    "VectorDistance",
    "distributed",
    "fit_adapter",
    "refresh_order",
    "selection_weights",
    "synthesised",
    "to_adapter",
    "transform",
]

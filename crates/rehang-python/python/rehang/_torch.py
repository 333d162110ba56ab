"""An adapter in PyTorch: the operators of its ONNX network, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import _rehang


class Module(torch.nn.Module):
    """h and σ² of an adapter: rows ``[n, d_old]`` (and side information) in, ``(vector [n, d_new], sigma2 [n])`` out.

    Its numbers are buffers: ``.to(device)`` moves them, and no gradient flows into them.
    """

    def __init__(self, adapter: _rehang.Adapter) -> None:
        super().__init__()
        constants, self._nodes, self._inputs, self._outputs = adapter.network()
        self._places = {}
        for place, (name, numbers) in enumerate(constants.items()):
            self._places[name] = f"constant_{place}"
            self.register_buffer(f"constant_{place}", torch.from_numpy(np.array(numbers)))
        # What no later operator reads is let go at once: activations are wide, and a card's memory is small.
        last = {name: place for place, (_, inputs, _, _) in enumerate(self._nodes) for name in inputs}
        self._done: list[list[str]] = [[] for _ in self._nodes]
        for name, place in last.items():
            if name not in self._outputs:
                self._done[place].append(name)

    def forward(self, *rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Applies the adapter."""
        if len(rows) != len(self._inputs):
            raise TypeError(f"the adapter takes {len(self._inputs)} inputs ({', '.join(self._inputs)}), not {len(rows)}")
        values: dict[str, Any] = {name: getattr(self, place) for name, place in self._places.items()}
        values.update(zip(self._inputs, rows, strict=True))
        # Double precision is what transform has for lengths and σ²; Apple's cards have none.
        double = rows[0].dtype if rows[0].device.type == "mps" else torch.float64
        types = {_SINGLE: rows[0].dtype, _WHOLE: torch.int64, _DOUBLE: double}
        for (kind, inputs, outputs, attributes), done in zip(self._nodes, self._done, strict=True):
            if kind == "Cast":
                made = values[inputs[0]].to(types[attributes["to"]])
            else:
                made = _OPERATORS[kind](*(values[name] for name in inputs), **attributes)
            values.update(zip(outputs, made if isinstance(made, tuple) else (made,), strict=True))
            del made
            for name in done:
                values.pop(name, None)
        vector, sigma2 = (values[name] for name in self._outputs)
        return vector, sigma2


def _axes(value: torch.Tensor) -> list[int]:
    return [int(axis) for axis in value]


def _gather(rows: torch.Tensor, places: torch.Tensor, axis: int) -> torch.Tensor:
    assert axis == 0
    return rows[places]


def _top(values: torch.Tensor, count: torch.Tensor, axis: int, largest: int) -> tuple[torch.Tensor, torch.Tensor]:
    top = torch.topk(values, int(count), dim=axis, largest=bool(largest))
    return top.values, top.indices


# Types of numbers, as ONNX counts them.
_SINGLE, _WHOLE, _DOUBLE = 1, 7, 11

# Operators of ONNX that adapters are made of, with its names of arguments and attributes.
_OPERATORS: dict[str, Any] = {
    "Add": torch.add,
    "Clip": lambda value, low, high: torch.clamp(value, low, high),
    "Concat": lambda *values, axis: torch.cat(values, dim=axis),
    "Div": torch.div,
    "Equal": torch.eq,
    "Exp": torch.exp,
    "Gather": _gather,
    "GatherElements": lambda values, places, axis: torch.gather(values, axis, places),
    "Gemm": lambda rows, weight, bias, transB: torch.addmm(bias, rows, weight.T),
    "Identity": lambda value: value,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Log": torch.log,
    "LogSoftmax": lambda value, axis: torch.log_softmax(value, dim=axis),
    "MatMul": torch.matmul,
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Mul": torch.mul,
    "ReduceMax": lambda value, axes, keepdims: torch.amax(value, dim=axes, keepdim=bool(keepdims)),
    "ReduceMean": lambda value, axes, keepdims: torch.mean(value, dim=axes, keepdim=bool(keepdims)),
    "ReduceSum": lambda value, axes, keepdims: torch.sum(value, dim=_axes(axes), keepdim=bool(keepdims)),
    "Relu": torch.relu,
    "Reshape": lambda value, shape: value.reshape(_axes(shape)),
    "Sqrt": torch.sqrt,
    "Squeeze": lambda value, axes: value.squeeze(_axes(axes)[0]),
    "Sub": torch.sub,
    "TopK": _top,
    "Unsqueeze": lambda value, axes: value.unsqueeze(_axes(axes)[0]),
    "Where": torch.where,
}

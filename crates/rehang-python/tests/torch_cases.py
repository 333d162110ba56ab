"""Every loss of ``rehang.torch`` on the batches whose values and derivatives Rust has recorded in ``losses.json`` and ``fastfill.json``.

``laboratory/bench/gpu`` compares the same ones on a graphics card.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rehang.torch as rt

HERE = Path(__file__).parent
FORMS = [
    ("softmax", {}),
    ("normalised-softmax", {"scale": 4.0}),
    ("cosface", {"scale": 4.0, "margin": 0.3}),
    ("arcface", {"scale": 4.0, "margin": 0.3}),
]
RUST_FORMS = {"Softmax": FORMS[0], "ArcFace { scale: 4.0, margin: 0.3 }": FORMS[3]}


def numbers(count: int, seed: int) -> np.ndarray:
    """The numbers between −1 and 1 that Rust's tests make of a seed."""
    state, made = (seed * 747_796_405 + 1) % 2**32, []
    for _ in range(count):
        state = (state * 1_664_525 + 1_013_904_223) % 2**32
        made.append(np.float32(state >> 8) / np.float32(1 << 23) - np.float32(1))
    return np.array(made, dtype=np.float32)


class Case:
    """A loss with its inputs: ``value(device, dtype)`` gives a number and the leaves by the names that Rust has for them."""

    def __init__(self, name: str, expected: float, slopes: dict[str, np.ndarray], made: Callable[[Any, Any], Any]) -> None:
        self.name, self.expected, self.slopes, self._made = name, expected, slopes, made

    def value(self, device: Any = "cpu", dtype: Any = torch.float64) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self._made(device, dtype)

    def difference(self, device: Any = "cpu", dtype: Any = torch.float64) -> float:
        """The largest difference from Rust, of the value and of every derivative, over 1 + the expected one's size."""
        value, leaves = self.value(device, dtype)
        slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if value.requires_grad else [None] * len(leaves)
        worst = abs(float(value.detach()) - self.expected) / (1 + abs(self.expected))
        for name, slope in zip(leaves, slopes, strict=True):
            expected = self.slopes.get(name, np.zeros(0))
            received = np.zeros_like(expected) if slope is None else slope.detach().double().cpu().numpy().reshape(-1)
            expected = expected if len(expected) else np.zeros_like(received)
            if len(received):
                worst = max(worst, float((np.abs(received - expected) / (1 + np.abs(expected))).max()))
        return worst


def of_training() -> Iterator[Case]:
    """Those of the laboratory's trainer."""
    for batch in json.loads((HERE / "losses.json").read_text()):
        for case in batch["cases"]:
            yield _of_training(batch, case)


def _of_training(batch: dict[str, Any], case: dict[str, Any]) -> Case:
    name, rows, d_old = case["name"], len(batch["labels"]), batch["d_old"]
    d_new = batch["narrow"] if name.endswith("narrow") else batch["d_new"]

    def made(device: Any, dtype: Any) -> Any:
        def tensor(count: int, seed: int, *shape: int) -> torch.Tensor:
            return torch.from_numpy(numbers(count, seed)).reshape(*shape).to(device, dtype)

        labels = torch.tensor(batch["labels"], device=device)
        of_old = torch.tensor(batch["of_old"], device=device)
        new = tensor(rows * d_new, 1, rows, d_new).requires_grad_()
        old = tensor(rows * d_old, 2, rows, d_old)
        adapted = tensor(rows * d_new, 3, rows, d_new).requires_grad_()
        sister = tensor(rows * d_old, 8, rows, d_old) if name.endswith("drawn") else None
        weight = tensor(batch["classes"] * d_new, 4, batch["classes"], d_new)
        old_weight = tensor(batch["old_classes"] * d_old, 9, batch["old_classes"], d_old)

        def heads(form: Any) -> tuple[rt.Head, rt.Head]:
            kind, options = form
            head = rt.Head(*weight.shape, form=kind, **options).to(device, dtype)
            with torch.no_grad():
                head.weight.copy_(weight)
            return rt.Head.frozen(old_weight, form=kind, **options), head

        loss, head = _loss(name, heads, new, old, adapted, labels, of_old, sister)
        leaves = {"new": new, "adapted": adapted}
        if head is not None:
            leaves["head"] = head.weight
        return loss, leaves

    slopes = {part: np.array(values, dtype=np.float64) for part, values in case["slopes"].items()}
    return Case(f"{rows} rows: {name}", case["value"], slopes, made)


def _loss(name: str, heads: Any, new: Any, old: Any, adapted: Any, labels: Any, of_old: Any, sister: Any) -> Any:
    kind, _, rest = name.partition(" ")
    if rest.isdigit():
        old_head, head = heads(FORMS[int(rest)])
        return {
            "classification": lambda: rt.Classification(0.1)(new, labels, head),
            "forward-adaptive": lambda: rt.ForwardAdaptive()(adapted, labels, head),
            "both-heads": lambda: rt.BothHeads(old_head)(new, labels, head),
            "distillation": lambda: rt.HeadDistillation(old_head, 2.0)(new, old),
            "focal": lambda: rt.FocalDistillation(old_head, "probabilities", base=1.0, focus=5.0, temperature=2.0)(new, old, labels, head),
            "focal-features": lambda: rt.FocalDistillation(old_head, "features", base=1.0, focus=5.0)(new, old, labels, head),
        }[kind](), head
    form = next((form for said, form in RUST_FORMS.items() if rest.startswith(said)), FORMS[0])
    old_head, _ = heads(FORMS[3] if name == "selective narrow" else form)
    if kind == "influence":
        training_set = "old" if " Old " in name else "new"
        new_classes = "distillation" if name.endswith("Distillation") else "leave-out"
        return rt.Influence(old_head, training_set=training_set, new_classes=new_classes)(new, labels, old, of_old), None
    if kind in ("selective", "selective-bare"):
        selection = {"LeastConfidence": "least-confidence", "Even": "even"}.get(name.rsplit(" ", 1)[1], "entropy")
        logits = "head" if kind == "selective" else "inner-products"
        return rt.Selective(old_head, selection, logits=logits)(new, old, labels), None
    if kind == "contrast":
        form_of = "vanilla" if rest.startswith("Old ") else "split" if rest.startswith("Split") else "contrastive"
        hardest = 2 if "Some(2)" in name else None
        objective = rt.Contrast(form_of, temperature=0.5, temperature_new=0.7, eta=0.6, hardest=hardest)
        return objective(new, old, labels, sister), None
    if kind == "triplets":
        objective = rt.Triplet(new_negatives=rest.startswith("true"), margin=0.8, hardest=2 if "Some(2)" in name else None)
        return objective(new, old, labels, sister), None
    if kind == "regression":
        objective = rt.Regression(old_head if name.endswith("head") else None, stop_gradient=rest.startswith("true"))
        return objective(new, old, labels, adapted), None
    if kind == "focal-features":
        return rt.FocalDistillation(old_head, "features", base=1.0, focus=5.0)(new, old, labels), None
    assert kind == "distance", name
    return rt.VectorDistance()(new, old), None


def of_adapters() -> Iterator[Case]:
    """Those of FastFill and FCT."""
    recorded = json.loads((HERE / "fastfill.json").read_text())
    for case in recorded["cases"]:
        yield _of_adapter(recorded, case)


def _of_adapter(of: dict[str, Any], case: dict[str, Any]) -> Case:
    d, rows, classes = of["d"], of["rows"], of["classes"]

    def made(device: Any, dtype: Any) -> Any:
        def tensor(count: int, seed: int, *shape: int) -> torch.Tensor:
            return torch.from_numpy(numbers(count, seed)).reshape(*shape).to(device, dtype)

        labels = torch.tensor(of["labels"], device=device)
        new, adapted = tensor(rows * d, 31, rows, d), tensor(rows * d, 32, rows, d).requires_grad_()
        psi = torch.from_numpy(np.float32(0.8) * numbers(d + 1, 33)).to(device, dtype).requires_grad_()
        head = None
        if case["head"] is not None:
            options = {} if case["head"] == "softmax" else {"scale": 4.0, "margin": 0.3}
            bias = tensor(classes, 22, classes) if case["head"] == "softmax" else None
            head = rt.Head.frozen(tensor(classes * d, 21, classes, d), bias, form=case["head"], **options)
        narrow = {"log_weight": 0.4, "bound": 0.3} if case["uncertainty"] == "bounded" else {}
        objective = rt.FastFill(
            squared=case["squared"], squared_weight=0.8, head=head, discriminative_weight=0.6, smoothing=0.1,
            on_sphere=case["on_sphere"], variance=of["variance"], **narrow,
        )  # fmt: skip
        s = None
        if case["uncertainty"] != "off":
            s = (adapted.detach() if case["warm_up"] else adapted) @ psi[:d] + psi[d]
        return objective(adapted, new, labels, s, warm_up=case["warm_up"]), {"adapted": adapted, "psi": psi}

    slopes = {part: np.array(case[part], dtype=np.float64) for part in ("adapted", "psi")}
    words = [case["squared"], case["head"], case["uncertainty"], *(word for word in ("on_sphere", "warm_up") if case[word])]
    return Case(" ".join(map(str, words)), case["value"], slopes, made)

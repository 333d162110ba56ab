"""Losses of ``rehang.torch`` against those of Rust, by hand, twice differentiated, in mixed precision and over two processes."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rehang

torch = pytest.importorskip("torch", reason="rehang.torch needs PyTorch, which is not installed here (REHANG_TORCH=1 installs it in .ci/run)")

import torch_cases  # noqa: E402

import rehang.torch as rt  # noqa: E402
from rehang.torch._numbers import unit  # noqa: E402

TRAINING = list(torch_cases.of_training())
ADAPTERS = list(torch_cases.of_adapters())


@pytest.mark.parametrize("case", TRAINING, ids=lambda case: case.name)
def test_a_loss_of_training_is_that_of_rust(case: Any) -> None:
    assert case.difference() < 1e-5
    assert case.difference(dtype=torch.float32) < 1e-5


@pytest.mark.parametrize("case", ADAPTERS, ids=lambda case: case.name)
def test_a_loss_of_adapters_is_that_of_rust(case: Any) -> None:
    assert case.difference() < 1e-5
    assert case.difference(dtype=torch.float32) < 1e-5


def test_every_loss_of_rust_is_compared() -> None:
    assert len(TRAINING) == 2 * 73 and len(ADAPTERS) == 4 * 7 * 5


# By hand


def rows(*values: float, width: int = 2) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(-1, width)


def close(value: torch.Tensor, expected: float) -> None:
    assert abs(float(value) - expected) < 1e-9


AXES = {"new": rows(2, 0, 0, 3), "old": rows(1, 0, 5, 0), "labels": torch.tensor([0, 1])}


def test_contrast_by_hand() -> None:
    # Row 0: positive 1, old negative 1, new negative 0; row 1: positive 0, old negative 0, new negative 0.
    two = math.e**2
    vanilla = 0.5 * (math.log(2 * two) - 2 + math.log(2))
    make = lambda form: rt.Contrast(form, temperature=0.5, temperature_new=0.7, eta=0.6)(**AXES)  # noqa: E731
    close(make("vanilla"), vanilla)
    close(make("contrastive"), 0.5 * (math.log(2 * two + 1) - 2 + math.log(3)))
    close(make("split"), vanilla + 0.6 * 0.5 * (math.log(two + 1) - 2 + math.log(2)))
    close(rt.Contrast("vanilla", temperature=0.5)(**AXES, sister=rows(0, 1, 0, 1)), 0.5 * (math.log(1 + two) + math.log(two + 1) - 2))
    alone = {**AXES, "labels": torch.tensor([7, 7])}
    assert all(abs(float(rt.Contrast(form)(**alone))) < 1e-12 for form in ("vanilla", "contrastive", "split"))


def test_triplets_and_influence_by_hand() -> None:
    close(rt.Triplet(new_negatives=False)(**AXES), 0.8)
    close(rt.Triplet()(**AXES), 0.5 * (0.8 + 1.6))
    close(rt.Triplet()(**{**AXES, "labels": torch.tensor([4, 4])}), 0.0)
    old_head = rt.Head.frozen(rows(1, 0, 0, 0))
    new, labels = AXES["new"], AXES["labels"]
    close(rt.Influence(old_head)(new, labels), 0.5 * (math.log(1 + math.e**-2) + math.log(2)))
    basic = rt.Influence(old_head, training_set="old")
    close(basic(new, labels, of_old=torch.tensor([False, True])), math.log(2))
    close(basic(new, labels, of_old=torch.tensor([False, False])), 0.0)
    close(rt.Influence(old_head)(new, torch.tensor([5, -1])), 0.0)
    with pytest.raises(ValueError, match="of_old"):
        basic(new, labels)


def test_what_is_distilled_stands_in_one_mean_with_the_others() -> None:
    old_head = rt.Head.frozen(rows(1, 0, 0, 0))
    p = lambda logit: (1 / (1 + math.exp(-logit)), 1 / (1 + math.exp(logit)))  # noqa: E731
    kl = sum(a * math.log(a / b) for a, b in zip(p(3.0), p(1.0), strict=True))
    made = rt.Influence(old_head, new_classes="distillation")(rows(2, 0, 0, 3, 1, 0), torch.tensor([0, 0, 7]), rows(1, 0, 5, 0, 3, 0))
    close(made, (math.log(1 + math.e**-2) + math.log(2) + kl) / 3)


def test_selection_by_hand() -> None:
    head, ln3 = rt.Head.frozen(rows(1, 0, 0, 0)), math.log(3)
    old, labels = rows(ln3, 0, 0, 0), torch.tensor([0, 0])
    sure, unsure = 0.75 * math.log(4 / 3) + 0.25 * math.log(4), math.log(2)
    share = math.exp(sure) / (math.exp(sure) + math.exp(unsure))
    close(rt.selection_weights(head, old, labels)[0], 1 - share)
    close(rt.selection_weights(head, old, labels, "least-confidence")[0], math.exp(0.75) / (math.exp(0.75) + math.exp(0.5)))
    assert rt.selection_weights(head, old, torch.tensor([0, 5])).tolist() == [1.0, 0.0]
    assert rt.selection_weights(head, old, torch.tensor([5, 5])).tolist() == [0.0, 0.0]


def test_a_sharper_selection_by_hand() -> None:
    head, old, labels = rt.Head.frozen(rows(1, 0, 0, 0)), rows(math.log(3), 0, 0, 0), torch.tensor([0, 0])
    sure, unsure = 0.75 * math.log(4 / 3) + 0.25 * math.log(4), math.log(2)
    for selection, ratio in (("entropy", 4 * (unsure - sure)), ("least-confidence", 4 * (0.75 - 0.5))):
        weights = rt.selection_weights(head, old, labels, selection, sharpness=4.0)
        close(torch.log(weights[0] / weights[1]), ratio)
        close(weights.sum(), 1.0)
        # New vectors (0, 0) and (ln 3, 0): losses ln 2 and ln 4/3.
        expected = float(weights[0]) * math.log(2) + float(weights[1]) * math.log(4 / 3)
        close(rt.Selective(head, selection, sharpness=4.0)(old.flip(0), old, labels), expected)
    assert rt.selection_weights(head, old, torch.tensor([0, 5]), sharpness=4.0).tolist() == [1.0, 0.0]
    assert rt.selection_weights(head, old, torch.tensor([5, 5]), sharpness=4.0).tolist() == [0.0, 0.0]
    for options in ({"sharpness": 0.0}, {"sharpness": math.inf}, {"selection": "even", "sharpness": 2.0}):
        with pytest.raises(ValueError, match="sharpness"):
            rt.Selective(head, **options)(old, old, labels)


def test_distances_and_focal_distillation_by_hand() -> None:
    close(rt.VectorDistance()(rows(1, 2, 9, 0, 0, 9, width=3), rows(0, 2, 3, 4)), 13.0)
    new, old, labels = rows(0, 1, 0, 1), rows(1, 0, 0, 1), torch.tensor([0, 0])
    head = rt.Head.frozen(rows(1, 0, 0, 1))
    focal = lambda form, focus: rt.FocalDistillation(head, form, focus=focus, temperature=1.0)(new, old, labels, head)  # noqa: E731
    # The first row is right, the second wrong: KL of (σ(1), σ(−1)) against its mirror image is tanh(½), the second row's is 0.
    close(focal("probabilities", 0.0), 0.5 * math.tanh(0.5))
    close(focal("probabilities", 5.0), 3.0 * math.tanh(0.5))
    # ‖(0, 1) − (1, 0)‖² = 2 for the row that is right, 0 for the other.
    close(focal("features", 0.0), 1.0)
    close(focal("features", 5.0), 6.0)


def test_heads_by_hand() -> None:
    def loss(form: Any, vector: tuple[float, float], label: int, smoothing: float = 0.0, **options: float) -> float:
        head = rt.Head.frozen(rows(1, 0, 0, 2), form=form, **options)
        return float(head.losses(rows(*vector), torch.tensor([label]), smoothing)[0])

    ln = lambda difference: math.log(1 + math.exp(difference))  # noqa: E731
    assert abs(loss("softmax", (3, 4), 1) - ln(3 - 8)) < 1e-9
    assert abs(loss("normalised-softmax", (3, 4), 1, scale=10) - ln(6 - 8)) < 1e-9
    assert abs(loss("cosface", (3, 4), 1, scale=10, margin=0.35) - ln(6 - 4.5)) < 1e-9
    assert abs(loss("arcface", (0.5, math.sqrt(0.75)), 0, scale=10, margin=math.pi / 6) - ln(5 * math.sqrt(3))) < 1e-9
    assert abs(loss("softmax", (3, 4), 1, 0.1) - (0.95 * ln(3 - 8) + 0.05 * ln(8 - 3))) < 1e-9
    assert loss("softmax", (3, 4), 2, 0.1) == 0
    head = rt.Head(3, 2, taught=[0, 1])
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1, 0.2], [0.1, 2], [30, 40]]))
    two = rt.Head.frozen(head.weight[:2], head.bias[:2])
    given, labels = torch.tensor([[3.0, 4], [1, -1]]), torch.tensor([1, 0])
    assert torch.allclose(head.losses(given, labels)[0], two.losses(given, labels)[0])
    with pytest.raises(ValueError, match="radians"):
        rt.Head(3, 2, form="arcface", margin=28.6)
    with pytest.raises(ValueError, match="scale"):
        rt.Head(3, 2, form="cosface", scale=math.nan)


def test_synthesised_weights_by_hand() -> None:
    weight, old, labels = rows(3, 0, 0, 3), rows(5, 0, 0, 2, 1, 1), torch.tensor([2, 2, 0])
    more = rt.synthesised(rt.Head.frozen(weight, form="arcface"), old, labels, 3)
    assert more.weight.tolist() == [[3, 0], [0, 3], [0.5, 0.5]] and not more.weight.requires_grad
    more = rt.synthesised(rt.Head.frozen(weight, torch.tensor([1.0, 2.0])), old, labels, 3)
    assert abs(float(more.weight[2].norm()) - 3) < 1e-9 and float(more.bias[2]) == 1.5
    assert rt.synthesised(rt.Head.frozen(weight), old, labels, 2).classes == 2


def test_the_orthogonality_loss_by_hand() -> None:
    weight = rows(2, 0, 0, 1)
    # WWᵀ − I = diag(3, 0): its length is 3.
    loss = rt.LambdaOrthogonality(threshold=1.0, sharpness=2.0, contrast_weight=0)
    orthogonal = 3 / (1 + math.exp(-4))
    close(loss.orthogonality(weight), orthogonal)
    forward, backward, old = rows(1, 0, 0, 1), rows(0, 0, 0, 3), rows(0, 2, 0, 3)
    # ‖F − B‖²: 1 and 4; ‖B − o‖²: 4 and 0.
    close(loss(forward, backward, old, weight), 4.5 + orthogonal)
    assert float(loss.orthogonality(torch.eye(3))) == 0
    # Two rows of two classes, both views of each alike: every view has one positive of cosine 1, and two negatives of cosine 0.
    views = rows(1, 0, 0, 1)
    contrast = rt.LambdaOrthogonality(threshold=1.0, temperature=0.5)
    whole = contrast(views, views, views, torch.eye(2, dtype=torch.float64), torch.tensor([0, 1]))
    close(whole, math.log(math.e**2 + 2) - 2)


# Reductions and options


def _reduced(reduction: Any) -> dict[str, tuple[torch.Tensor, int]]:
    """The losses with a reduction, and how many of five rows count: the old head does not know the class of one."""
    new, old, adapted = (double(5, 3, seed=seed).detach() for seed in (1, 2, 3))
    labels, old_head, head = torch.tensor([0, 1, 5, 0, 1]), OLD_HEADS["cosface"], rt.Head.frozen(double(6, 3, seed=4))
    of_old = torch.tensor([True, True, True, False, True])
    return {
        "classification": (rt.Classification(0.1, reduction=reduction)(new, labels, old_head), 5),
        "influence": (rt.Influence(old_head, reduction=reduction)(new, labels), 4),
        "basic influence": (rt.Influence(old_head, training_set="old", reduction=reduction)(new, labels, of_old=of_old), 3),
        "contrast": (rt.Contrast("split", reduction=reduction)(new, old, labels), 5),
        "triplets": (rt.Triplet(reduction=reduction)(new, old, labels), 5),
        "selective": (rt.Selective(old_head, reduction=reduction)(new, old, labels), 4),
        "even": (rt.Selective(old_head, "even", reduction=reduction)(new, old, labels), 4),
        "forward-adaptive": (rt.ForwardAdaptive(reduction=reduction)(adapted, labels, head), 5),
        "regression": (rt.Regression(old_head, reduction=reduction)(new, old, labels, adapted), 5),
        "distance": (rt.VectorDistance(reduction=reduction)(new, old), 5),
        "distillation": (rt.HeadDistillation(old_head, reduction=reduction)(new, old), 5),
        "focal features": (rt.FocalDistillation(old_head, reduction=reduction)(new, old, labels), 5),
        "focal probabilities": (rt.FocalDistillation(old_head, "probabilities", reduction=reduction)(new, old, labels, head), 4),
        "both heads": (rt.BothHeads(old_head, reduction=reduction)(new, labels, head), 4),
        "fastfill": (rt.FastFill(head=head, reduction=reduction)(adapted, new, labels, adapted.sum(dim=1)), 5),
        "λ-orthogonality": (rt.LambdaOrthogonality(reduction=reduction)(adapted, new, old, new.T @ new, labels), 5),
    }  # fmt: skip


def test_reductions_are_those_of_pytorch() -> None:
    means, sums, singles = (_reduced(reduction) for reduction in ("mean", "sum", "none"))
    for name, (single, number) in singles.items():
        assert single.shape == (5,), name
        assert torch.allclose(sums[name][0], single.sum(), atol=1e-9), name
        assert torch.allclose(means[name][0], single.sum() / number, atol=1e-9), name
        assert number == 5 or float(single[2]) == 0, name
    # Rows that weigh alike are those of BCT.
    assert torch.allclose(singles["even"][0], singles["influence"][0])
    new, labels, head = double(5, 3, seed=1).detach(), LABELS, OLD_HEADS["softmax"]
    for reduction in ("mean", "sum", "none"):
        expected = torch.nn.functional.cross_entropy(head(new), labels, label_smoothing=0.1, reduction=reduction)
        assert torch.allclose(rt.Classification(0.1, reduction=reduction)(new, labels, head), expected)
    for make in (rt.Contrast, rt.VectorDistance, rt.LambdaOrthogonality):
        with pytest.raises(ValueError, match="reduction"):
            make(reduction="average")


def test_print_says_the_options() -> None:
    assert repr(rt.VectorDistance(reduction="sum")) == "VectorDistance(reduction='sum')"
    said = repr(rt.Contrast("split", eta=0.5, hardest=2))
    assert said == "Contrast(reduction='mean', form='split', eta=0.5, hardest=2, temperature=0.05, temperature_new=0.05)"
    said = repr(rt.Selective(rt.Head.frozen(rows(1, 0, 0, 0)), sharpness=4.0))
    assert "selection='entropy', logits='head', sharpness=4.0" in said and "(old_head): Head(2, 2, form='softmax'" in said


# Derivatives


def double(*shape: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(torch_cases.numbers(math.prod(shape), seed)).double().reshape(*shape).requires_grad_()


LABELS = torch.tensor([0, 1, 2, 0, 1])
OLD_HEADS = {
    form: rt.Head.frozen(double(3, 3, seed=9), form=form, **options).double() for form, options in torch_cases.FORMS
}


def _losses() -> dict[str, Callable[..., torch.Tensor]]:
    old = double(5, 3, seed=2).detach()
    made: dict[str, Callable[..., torch.Tensor]] = {}
    for form, head in OLD_HEADS.items():
        made[f"influence {form}"] = lambda new, _, head=head: rt.Influence(head, new_classes="distillation")(new, LABELS + 1, old)
        made[f"selective {form}"] = lambda new, _, head=head: rt.Selective(head)(new, old, LABELS)
    head = OLD_HEADS["softmax"]
    for form in ("contrastive", "vanilla", "split"):
        made[form] = lambda new, _, form=form: rt.Contrast(form, temperature=0.5, hardest=2)(new, old, LABELS)
    made["triplets"] = lambda new, _: rt.Triplet()(new, old, LABELS)
    made["regression"] = lambda new, adapted: rt.Regression(head)(new, old, LABELS, adapted)
    made["distance"] = lambda new, _: rt.VectorDistance()(new, old)
    made["distillation"] = lambda new, _: rt.HeadDistillation(head)(new, old)
    made["focal features"] = lambda new, _: rt.FocalDistillation(head)(new, old, LABELS)
    made["focal probabilities"] = lambda new, _: rt.FocalDistillation(head, "probabilities", temperature=2.0)(new, old, LABELS, head)
    made["both heads"] = lambda new, _: rt.BothHeads(head)(new, LABELS, head)
    made["forward-adaptive"] = lambda new, adapted: rt.ForwardAdaptive()(adapted, LABELS, head) + 0 * new.sum()
    for squared in ("mean", "sum", "variance", "cosine"):
        made[f"fastfill {squared}"] = lambda new, adapted, squared=squared: rt.FastFill(squared=squared, head=head, variance=1.5)(
            adapted, old, LABELS, adapted.sum(dim=1)
        ) + 0 * new.sum()
    made["λ-orthogonality"] = lambda new, adapted: rt.LambdaOrthogonality(threshold=0.5)(adapted, new, old, new.T @ new, LABELS)
    return made


@pytest.mark.parametrize("name", _losses())
def test_a_loss_is_twice_differentiable(name: str) -> None:
    loss, inputs = _losses()[name], (double(5, 3, seed=1), double(5, 3, seed=3))
    assert torch.autograd.gradcheck(loss, inputs)
    assert torch.autograd.gradgradcheck(loss, inputs)


def test_zero_rows_and_no_rows_stay_finite() -> None:
    old = double(5, 3, seed=2).detach()
    for form, head in OLD_HEADS.items():
        new = double(5, 3, seed=1)
        with torch.no_grad():
            new[0], old[1] = 0, 0
        value = (
            rt.Contrast()(new, old, LABELS) + rt.Selective(head)(new, old, LABELS) + rt.Regression(head)(new, old, LABELS) + rt.Influence(head)(new, LABELS)
            + rt.FastFill(squared="cosine", head=head)(new, old, LABELS) + rt.BothHeads(head)(new, LABELS, head)
        )  # fmt: skip
        (slope,) = torch.autograd.grad(value, [new])
        assert value.isfinite() and slope.isfinite().all(), form
        none, labels = torch.zeros(0, 3, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        assert float(rt.Contrast()(none, none, labels) + rt.Selective(head)(none, none, labels) + rt.Influence(head)(none, labels)) == 0


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e-20), (torch.bfloat16, 1e-20), (torch.float16, 1e-6)])
def test_short_rows_have_finite_derivatives(dtype: Any, size: float) -> None:
    old = double(5, 3, seed=2).detach().float()
    for form, frozen in OLD_HEADS.items():
        head = rt.Head.frozen(frozen.weight.float(), form=form)
        for count in (1, 5):
            new = double(5, 3, seed=1).detach().to(dtype)
            new[:count] = size
            new.requires_grad_()
            values = [
                rt.Classification()(new, LABELS, head), rt.Influence(head, new_classes="distillation")(new, LABELS + 1, old), rt.Contrast("split")(new, old, LABELS),
                rt.Triplet()(new, old, LABELS), rt.Selective(head)(new, old, LABELS), rt.Regression(head)(new, old, LABELS, new), rt.BothHeads(head)(new, LABELS, head),
                rt.FastFill(squared="cosine", head=head)(new, old, LABELS), rt.FastFill(head=head, on_sphere=True)(new, old, LABELS),
                rt.LambdaOrthogonality()(new, new, old, torch.eye(3), LABELS),
            ]  # fmt: skip
            for value in values:
                (slope,) = torch.autograd.grad(value, [new])
                assert value.isfinite() and slope.dtype == dtype and slope.isfinite().all(), (form, count, values.index(value))


def test_the_length_of_a_short_row_is_that_of_pytorch() -> None:
    short = torch.tensor([[3e-20, 4e-20], [0.0, 0.0], [3e-12, 4e-12], [3.0, 4.0]], requires_grad=True)
    made = unit(short)
    assert torch.allclose(made, torch.nn.functional.normalize(short), rtol=1e-5, atol=0)
    (slope,) = torch.autograd.grad(made[:, 0].sum(), [short])
    assert (slope[:2] == 0).all() and (slope[2:] != 0).all() and slope.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_losses_are_single_and_those_of_the_same_rows(dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    new = (40 * torch.randn(16, 8, generator=generator)).to(dtype)
    old, labels = torch.randn(16, 8, generator=generator), torch.arange(16) % 4
    head = rt.Head(4, 8, form="arcface", scale=64.0, margin=0.5)
    make = lambda rows: rt.Contrast()(rows, old, labels) + rt.Classification()(rows, labels, head) + rt.VectorDistance()(rows, old)  # noqa: E731
    with torch.autocast("cpu", dtype=dtype):
        mixed = make(new)
    assert mixed.dtype == torch.float32 and torch.equal(mixed, make(new.float()))


# Samplers


def test_balanced_batches_hold_every_row_and_as_many_of_each_class() -> None:
    labels = np.repeat([3, 5, 7, 9, 11], [9, 2, 4, 1, 6])
    sampler = rt.BalancedBatches(labels, classes=2, items=3, seed=1)
    assert sampler.left_out == [15]
    batches = sampler.batches(0)
    assert {row for batch in batches for row in batch} == set(range(22)) - {15}
    for batch in batches:
        of_class = labels[batch].reshape(2, 3)
        assert (of_class == of_class[:, :1]).all() and of_class[0, 0] != of_class[1, 0]
    assert batches == sampler.batches(0) != sampler.batches(1)
    loader = torch.utils.data.DataLoader(list(range(22)), batch_sampler=sampler)
    assert len(loader) == len(list(loader))
    with pytest.raises(ValueError, match="classes"):
        rt.BalancedBatches(labels, classes=5, items=2)


def test_positives_are_other_rows_of_the_class() -> None:
    labels = np.array([4, 1, 4, 1, 9, 4, 1, 4])
    positives, every = rt.Positives(labels, seed=3), np.arange(8)
    drawn = np.stack([positives(every, epoch) for epoch in range(60)])
    assert (labels[drawn] == labels).all() and (drawn[:, 4] == 4).all()
    others = [place for place in range(8) if place != 4]
    assert (drawn[:, others] != every[others]).all()
    # Each other row of the class comes, and the same draw comes again.
    assert set(drawn[:, 0]) == {2, 5, 7} and (positives(every, 5) == drawn[5]).all()
    assert (positives(every[::-1], 5)[::-1] == drawn[5]).all()


@pytest.mark.parametrize("policy", ["least-confidence", "margin", "entropy"])
def test_the_hot_refresh_order_is_that_of_rehang(policy: Any, demo: dict[str, np.ndarray]) -> None:
    new = np.ascontiguousarray(demo["new"], dtype=np.float32)
    # Small, so that no probability is 1 to the last bit and items tie.
    weight = 0.05 * np.stack([new[demo["label"] == label].mean(axis=0) for label in range(10)])
    made = rt.refresh_order(policy, rt.Head.frozen(torch.from_numpy(weight)), torch.from_numpy(new), batch=500)
    expected = rehang.order(policy, adapted=new, head_weight=weight, head_kind="softmax")
    assert sorted(made) == list(range(len(new)))
    # Items whose scores differ by rounding alone may change places.
    assert (made == expected).mean() > 0.995


# Several processes


def _whole() -> dict[str, Any]:
    rows = 10
    return {
        "inputs": double(rows, 4, seed=1).detach(), "old": double(rows, 3, seed=2).detach(), "weight": double(3, 4, seed=5).detach(),
        "labels": torch.tensor([0, 1, 2, 0, 1, 3, 3, 0, 2, 2]), "head": double(4, 3, seed=4).detach(), "old_head": double(3, 3, seed=9).detach(),
    }  # fmt: skip


def _step(given: dict[str, Any], rows: slice, layer: Any, head: Any) -> torch.Tensor:
    old, labels = given["old"][rows], given["labels"][rows]
    old_head = rt.Head.frozen(given["old_head"])
    new = layer(given["inputs"][rows])
    loss = rt.Classification(0.1)(new, labels, head) + rt.Influence(old_head, new_classes="distillation")(new, labels, old)
    for form in ("contrastive", "split"):
        loss = loss + rt.Contrast(form, temperature=0.5, hardest=3)(new, old, labels)
    loss = loss + rt.Triplet()(new, old, labels) + rt.Selective(old_head)(new, old, labels)
    loss = loss + rt.Regression(old_head)(new, old, labels) + rt.FocalDistillation(old_head, "probabilities")(new, old, labels, head)
    loss = loss + rt.BothHeads(old_head)(new, labels, head) + rt.HeadDistillation(old_head)(new, old)
    loss = loss + rt.Contrast(reduction="sum")(new, old, labels) + rt.Selective(old_head, sharpness=2.0, reduction="sum")(new, old, labels)
    return loss + rt.LambdaOrthogonality(threshold=0.5)(new, new * 0.5, old, layer_weight(layer), labels)


def layer_weight(layer: Any) -> torch.Tensor:
    return getattr(layer, "module", layer).weight


def _models(given: dict[str, Any]) -> tuple[Any, Any]:
    layer, head = torch.nn.Linear(4, 3, bias=False).double(), rt.Head(4, 3).double()
    with torch.no_grad():
        layer.weight.copy_(given["weight"])
        head.weight.copy_(given["head"])
    return layer, head


def _of_rank(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    given = _whole()
    layer, head = _models(given)
    layer, head = (torch.nn.parallel.DistributedDataParallel(part) for part in (layer, head))
    # Uneven shares: six rows and four.
    loss = _step(given, slice(0, 6) if rank == 0 else slice(6, 10), layer, head.module)
    loss.backward()
    slopes = [part.weight.grad for part in (layer.module, head.module)]
    # The head is called through its own methods and not through the wrapper, so its gradients are averaged here.
    torch.distributed.all_reduce(slopes[1])
    slopes[1] /= 2
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    torch.save((total / 2, slopes), os.path.join(folder, f"{rank}.pt"))
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_gradients_of_one(tmp_path: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.start_processes(_of_rank, args=(port, str(tmp_path)), nprocs=2, start_method="spawn")
    given = _whole()
    layer, head = _models(given)
    loss = _step(given, slice(None), layer, head)
    loss.backward()
    for rank in range(2):
        value, slopes = torch.load(tmp_path / f"{rank}.pt")
        assert abs(float((value - loss).detach())) < 1e-9
        for received, expected in zip(slopes, (layer.weight.grad, head.weight.grad), strict=True):
            assert torch.allclose(received, expected, atol=1e-9), (received, expected)

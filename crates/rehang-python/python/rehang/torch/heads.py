"""Classification heads: logits with a margin on the true class, and cross-entropy; and ψ, DMU's forward-adaptive head.

With a vector ``v``, weights ``w_k`` and bias ``b_k`` of class ``k``, cosines ``c_k = ⟨v/‖v‖, w_k/‖w_k‖⟩``, scale ``s``, margin ``m`` and the
true class ``y``::

    softmax              z_k = ⟨v, w_k⟩ + b_k
    normalised-softmax   z_k = s·c_k
    cosface              z_k = s·(c_k − m·1[k = y])
    arcface              z_k = s·cos(arccos c_k + m·1[k = y]), beyond π − m  s·(c_y − m·sin m)
    L = −Σ t_k·log softmax(z)_k        t_k = (1 − ε)·1[k = y] + ε/classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from ._numbers import as_wide_as, exactly, held, unit, wide

Form = Literal["softmax", "normalised-softmax", "cosface", "arcface"]
MARGINS = {"cosface": 0.35, "arcface": 0.3}


class Head(torch.nn.Module):
    """A head of ``classes`` classes on vectors of ``dimension`` coordinates; it computes in full precision under autocast, too.

    Vectors that are wider than its weights are cut to their first coordinates, narrower ones are filled up with zeros (BCT §3.6).

    Parameters
    ----------
    classes, dimension : int
    form : str
        ``softmax``, ``normalised-softmax``, ``cosface`` or ``arcface``.
    scale, margin : float
        s and m; without a margin 0.35 for ``cosface`` and 0.3 radians for ``arcface``.
    taught : sequence of int, optional
        The classes that it is taught, all by default. All others, which only the old head knows, take no part in its losses.
    """

    taught: torch.Tensor | None

    def __init__(
        self,
        classes: int,
        dimension: int,
        *,
        form: Form = "softmax",
        scale: float = 30.0,
        margin: float | None = None,
        taught: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if form not in ("softmax", "normalised-softmax", "cosface", "arcface"):
            raise ValueError(f"form: {form!r} is none of softmax, normalised-softmax, cosface, arcface")
        self.form, self.scale = form, scale
        self.margin = MARGINS.get(form, 0.0) if margin is None else margin
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale: {scale} is no finite number above 0")
        if not 0 <= self.margin < (1.6 if form == "arcface" else math.inf):
            raise ValueError(f"margin: {self.margin} is out of range; a margin of an angle is in radians, 0 or more and below 1.6")
        bound = 1 / math.sqrt(dimension)
        self.weight = torch.nn.Parameter(torch.empty(classes, dimension).uniform_(-bound, bound))
        self.bias = torch.nn.Parameter(torch.zeros(classes), requires_grad=form == "softmax")
        self.register_buffer("taught", None if taught is None else torch.tensor(sorted(taught)))

    @classmethod
    def frozen(
        cls,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        form: Form = "softmax",
        scale: float = 30.0,
        margin: float | None = None,
    ) -> Head:
        """A head that does not learn, as that of an old model."""
        weight = weight.detach()
        head = cls(*weight.shape, form=form, scale=scale, margin=margin)
        head.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        made = weight.new_zeros(len(weight)) if bias is None else bias.detach().clone()
        head.bias = torch.nn.Parameter(made, requires_grad=False)
        return head

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.weight.shape[0])

    def knows(self, labels: torch.Tensor) -> torch.Tensor:
        """Whether the head has the class of each row, ``[B]``; a negative label is of no class."""
        return (labels >= 0) & (labels < self.classes)

    def forward(self, vectors: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Logits ``[B, classes]``; with labels, with the margin on each row's true class."""
        with exactly(vectors):
            products = self.inner_products(vectors)
            if self.form == "softmax":
                return products + self.bias.to(products.dtype)
            cosines = products
            if labels is not None and self.margin:
                known = self.knows(labels)
                places = torch.where(known, labels, 0)[:, None]
                true = self._with_margin(held(cosines.gather(1, places), -1.0, 1.0))
                cosines = torch.where(known[:, None], cosines.scatter(1, places, true), cosines)
            return cosines * self.scale

    def inner_products(self, vectors: torch.Tensor) -> torch.Tensor:
        """Bare inner products ``[B, classes]``: cosines without the scale, or products without the bias."""
        with exactly(vectors):
            rows, weight = wide(vectors), wide(self.weight)
            rows = as_wide_as(rows, weight.shape[1])
            weight = weight.to(rows.dtype)
            if self.form == "softmax":
                return rows @ weight.T
            return unit(rows, vectors.dtype) @ unit(weight, self.weight.dtype).T

    def losses(self, vectors: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of every row, ``[B]``, and whether it counts: a row of a class that the head is not taught has none."""
        return self.cross_entropy(self(vectors, labels), labels, smoothing)

    def cross_entropy(
        self, logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of logits."""
        known = self.knows(labels)
        places = torch.where(known, labels, 0)
        if self.taught is not None:
            place_of = torch.full((self.classes,), -1, device=labels.device)
            place_of[self.taught] = torch.arange(len(self.taught), device=labels.device)
            places = place_of[places]
            known = known & (places >= 0)
            places, logits = torch.where(known, places, 0), logits[:, self.taught]
        log_p = torch.log_softmax(logits, dim=1)
        loss = -(1 - smoothing) * log_p.gather(1, places[:, None])[:, 0]
        if smoothing:
            loss = loss - smoothing * log_p.mean(dim=1)
        return torch.where(known, loss, 0.0), known

    def _with_margin(self, cosine: torch.Tensor) -> torch.Tensor:
        if self.form == "cosface":
            return cosine - self.margin
        if self.form != "arcface":
            return cosine
        # Where the angle is 0 the slope of the sine is infinite: 1 − c² is kept above 1e-6.
        sine = held(1 - cosine.square(), 1e-6, math.inf).sqrt()
        inside = cosine * math.cos(self.margin) - sine * math.sin(self.margin)
        beyond = cosine - self.margin * math.sin(self.margin)
        return torch.where(cosine <= math.cos(math.pi - self.margin), beyond, inside)

    def extra_repr(self) -> str:
        """What ``print`` says of it."""
        classes, dimension = self.weight.shape
        return f"{classes}, {dimension}, form={self.form!r}, scale={self.scale}, margin={self.margin}"


def synthesised(head: Head, old: torch.Tensor, labels: torch.Tensor, classes: int) -> Head:
    """The old head with a weight for every class that it does not know: the mean of the class's old vectors, each at length 1 (BCT §2.5).

    Under ``softmax`` the mean is scaled to the mean length of the head's own weights, and the bias is their mean, so that logits of old and
    of synthesised classes are of one size. ``labels`` count the classes as the new model does, those of the old head first.

    Parameters
    ----------
    old : ``[n, d_old]``
        Old vectors of the training set.
    labels : ``[n]``
    classes : int
        Classes of the new model.
    """
    known, weight = head.classes, wide(head.weight.detach()).double()
    more = max(classes - known, 0)
    with torch.no_grad():
        rows = unit(wide(old.detach()).double())
        is_new = (labels >= known) & (labels < classes) & (rows.abs().sum(dim=1) > 0)
        place = labels[is_new] - known
        sums = rows.new_zeros((more, rows.shape[1])).index_add_(0, place, rows[is_new])
        counts = torch.bincount(place, minlength=more).clamp(min=1)[:, None]
        if head.form == "softmax":
            lengths = sums.norm(dim=1, keepdim=True)
            usual = weight.norm(dim=1).mean()
            made = torch.where(lengths > 0, sums * usual / torch.where(lengths > 0, lengths, 1.0), sums / counts)
        else:
            made = sums / counts
        bias = head.bias.detach()
        more_bias = bias.mean().expand(more) if head.form == "softmax" else bias.new_zeros(more)
        whole = torch.cat([weight, made]).to(head.weight.dtype)
    return Head.frozen(whole, torch.cat([bias, more_bias]), form=head.form, scale=head.scale, margin=head.margin)


class ForwardHead(torch.nn.Sequential):
    """ψ, the forward-adaptive head of DMU: three times ``fc(hidden) → BatchNorm → ReLU``, then ``fc(d_new)``.

    :func:`rehang.torch.to_adapter` makes an adapter of it.
    """

    def __init__(self, d_old: int, d_new: int, *, hidden: int = 1024, layers: int = 3) -> None:
        widths = [d_old, *[hidden] * layers]
        parts: list[torch.nn.Module] = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            parts += [torch.nn.Linear(inputs, outputs), torch.nn.BatchNorm1d(outputs), torch.nn.ReLU()]
        super().__init__(*parts, torch.nn.Linear(widths[-1], d_new))

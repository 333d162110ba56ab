"""What compatible training minimises, each a module: the losses of the laboratory's trainer for any encoder, device and precision.

``v = φ_new(x)``, ``o = φ_old(x)``, ``ω`` the weights of a head, ``B`` the batch. Nothing of the old model ever gets a gradient. Where
old and new vectors differ in width, ``v`` is cut to its first ``d_old`` coordinates, or filled up with zeros. Under autocast they
compute in single precision. Where a process group is there, ``B`` is the batch of all processes (:mod:`rehang.torch.distributed`).

Each takes ``reduction`` as PyTorch's own losses do: ``mean``, as the formulas have it, ``sum``, or ``none`` for ``[B]``, a number a row. The mean is the sum over
the number of rows that count; rows that do not are 0 under ``none``.

Values and gradients are those of the losses written in Rust, within 1e-5; a test compares every one of them.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from . import distributed
from ._numbers import as_wide_as, exactly, unit, wide
from .heads import Head

Reduction = Literal["mean", "sum", "none"]
Selection = Literal["entropy", "least-confidence", "even"]
SelectionLogits = Literal["head", "inner-products"]


class Loss(torch.nn.Module):
    """A loss of rows, with a reduction and a line of ``print``."""

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction: {reduction!r} is none of mean, sum, none")
        self.reduction = reduction

    def extra_repr(self) -> str:
        """What ``print`` says of it: its options that are words and numbers."""
        options = {name: value for name, value in vars(self).items() if name != "training" and not name.startswith("_")}
        return ", ".join(f"{name}={value!r}" for name, value in options.items() if isinstance(value, (str, int, float)))

    def _reduced(self, losses: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
        """The losses of the rows that count, all by default, as the reduction has them."""
        every = torch.ones(len(losses), dtype=torch.bool, device=losses.device)
        return distributed.reduced(losses, every if counts is None else counts, self.reduction)

    def _weighed(self, losses: torch.Tensor, weights: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The mean of losses by weights that sum to 1 over ``rows`` rows of all processes; their sum and each of them are ``rows`` times as much."""
        weighed = weights.to(losses.dtype) * losses
        if self.reduction == "none":
            return rows * weighed
        whole = weighed.sum() * distributed.world()
        return whole if self.reduction == "mean" else rows * whole


class Classification(Loss):
    """The new model's own loss (RACT 7, DMU 3): ``1/|B| Σ ℓ(v, ω_new)_y``; ``smoothing`` is the ε of label smoothing.

    Rows of a class that the head is not taught count as 0.
    """

    def __init__(self, smoothing: float = 0.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.smoothing = smoothing

    def forward(self, new: torch.Tensor, labels: torch.Tensor, head: Head) -> torch.Tensor:
        """``new [B, d_new]``, ``labels [B]`` → a number."""
        with exactly(new):
            losses, _ = head.losses(new, labels, self.smoothing)
            return self._reduced(losses)


class Influence(Loss):
    """BCT's influence loss (8): the new vectors must be told apart by the OLD, frozen head, ``1/|K| Σ_K ℓ(v, ω_old)_y``.

    K are the rows whose class the old head knows; with :func:`rehang.torch.synthesised` it knows all.

    Parameters
    ----------
    old_head : Head
        ω_old.
    training_set : str
        T_BCT: ``new`` for every row, ``old`` for those that the old model was trained on (BCT's basic form); then ``of_old`` is given.
    new_classes : str
        Rows of other classes: ``leave-out``, or ``distillation`` of what the head says of their old vectors, which stands in one mean with
        the others (BCT §2.5); then ``old`` is given.
    """

    def __init__(
        self,
        old_head: Head,
        *,
        training_set: Literal["new", "old"] = "new",
        new_classes: Literal["leave-out", "distillation"] = "leave-out",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.old_head, self.training_set, self.new_classes = old_head, training_set, new_classes

    def forward(
        self,
        new: torch.Tensor,
        labels: torch.Tensor,
        old: torch.Tensor | None = None,
        of_old: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``new [B, d_new]``, ``labels [B]``, ``old [B, d_old]``, ``of_old [B]`` → a number."""
        with exactly(new):
            losses, known = self.old_head.losses(new, labels)
            counts = known
            if self.training_set == "old":
                if of_old is None:
                    raise ValueError("of_old: with training_set='old' it says which rows the old model was trained on")
                counts = known & of_old.bool()
            if self.new_classes == "distillation":
                if old is None:
                    raise ValueError("old: rows of new classes are distilled from their old vectors")
                losses = torch.where(known, losses, divergence(self.old_head(old.detach()), self.old_head(new), 1.0))
                counts = counts | ~known
            return self._reduced(losses, counts)


class Contrast(Loss):
    """RACT's regression-alleviating compatibility (5, 6, 13), on vectors at length 1; ``k`` runs over the rows of other classes::

        pos = ⟨v, o⟩/τ     old(k) = ⟨v, o_k⟩/τ     new(k) = ⟨v, v_k⟩/τ_new
        vanilla (5):       −log e^pos / (e^pos + Σ e^old(k))
        contrastive (6):   −log e^pos / (e^pos + Σ e^old(k) + Σ e^new(k))
        split (13):        −log e^pos / (e^pos + Σ e^old(k)) − η·log e^pos / (e^pos + Σ e^new(k))

    Parameters
    ----------
    form : str
        ``contrastive``, ``vanilla`` or ``split``.
    temperature, temperature_new : float
        τ, and τ_new where it is another one.
    eta : float
        η of ``split``.
    hardest : int, optional
        So many of the nearest negatives of each set count; all by default.
    """

    def __init__(
        self,
        form: Literal["contrastive", "vanilla", "split"] = "contrastive",
        *,
        temperature: float = 0.05,
        temperature_new: float | None = None,
        eta: float = 1.0,
        hardest: int | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if form not in ("contrastive", "vanilla", "split"):
            raise ValueError(f"form: {form!r} is none of contrastive, vanilla, split")
        self.form, self.eta, self.hardest = form, eta, hardest
        self.temperature = temperature
        self.temperature_new = temperature if temperature_new is None else temperature_new

    def forward(
        self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor, sister: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]``, ``labels [B]`` → a number.

        ``sister [B, d_old]`` are old vectors of other rows of the rows' classes, where positives are drawn
        (:class:`rehang.torch.Positives`, RACT table 6).
        """
        with exactly(new):
            cosines = _Cosines(new, old, labels, sister, with_new=self.form != "vanilla")
            positive = cosines.positive[:, None] / self.temperature
            old_k = cosines.negatives(cosines.to_old, self.hardest) / self.temperature
            losses = -positive[:, 0]
            if self.form == "contrastive":
                new_k = cosines.negatives(cosines.to_new, self.hardest) / self.temperature_new
                losses = losses + torch.logsumexp(torch.cat([positive, old_k, new_k], dim=1), dim=1)
            else:
                losses = losses + torch.logsumexp(torch.cat([positive, old_k], dim=1), dim=1)
            if self.form == "split":
                new_k = cosines.negatives(cosines.to_new, self.hardest) / self.temperature_new
                against_new = torch.logsumexp(torch.cat([positive, new_k], dim=1), dim=1) - positive[:, 0]
                losses = losses + self.eta * against_new
            return self._reduced(losses)


class Triplet(Loss):
    """RACT's compatibility as triplets (14, 15): ``1/|N| Σ_k max(⟨v, o_k⟩ − ⟨v, o⟩ + m, 0)``, and with ``new_negatives`` as well
    ``max(⟨v, v_k⟩ − ⟨v, o⟩ + m, 0)`` with each k.

    The paper prints positive minus negative, which would reward the wrong direction. The loss is the mean over the rows that have any
    row of another class.
    """

    def __init__(
        self, *, new_negatives: bool = True, margin: float = 0.8, hardest: int | None = None, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.new_negatives, self.margin, self.hardest = new_negatives, margin, hardest

    def forward(
        self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor, sister: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As :meth:`Contrast.forward`."""
        with exactly(new):
            cosines = _Cosines(new, old, labels, sister, with_new=self.new_negatives)
            losses = torch.zeros_like(cosines.positive)
            for to in (cosines.to_old, cosines.to_new):
                if to is None:
                    continue
                # What is left out has the cosine −∞, and so never violates the margin.
                near = cosines.negatives(to, self.hardest)
                number = (near > -torch.inf).sum(dim=1).clamp(min=1)
                losses = losses + torch.relu(near - cosines.positive[:, None] + self.margin).sum(dim=1) / number
            return self._reduced(losses, cosines.others.any(dim=1))


class Selective(Loss):
    """DMU's selective backward compatibility (9, 10; 13): what the old model knew well is kept, ``Σ_K λ(x)·ℓ(v, ω_old)_y``::

        p(x) = softmax(logits of the old head for o)
        entropy            Λ = −Σ p log p      λ = (1 − softmax_K(Λ))/(|K| − 1)
        least-confidence   Λ = p_y             λ = softmax_K(Λ)
        even (BCT)                             λ = 1/|K|
        with a sharpness s                     λ = softmax_K(−s·Λ) by entropy, softmax_K(s·Λ) by least confidence

    K are the rows whose class the old head knows. With one such row λ = 1. With ``logits="inner-products"`` p is read off bare inner products, as
    (9) is printed: cosines without the head's scale, or products without a bias. As printed, λ by entropy is within 1/(|K| − 1) of even, whatever the
    old model knows; with ``sharpness`` it has no such bound. Under ``sum`` and ``none`` rows weigh |K|·λ, 1 in the mean.
    """

    def __init__(
        self,
        old_head: Head,
        selection: Selection = "entropy",
        *,
        logits: SelectionLogits = "head",
        sharpness: float | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.old_head, self.selection, self.logits, self.sharpness = old_head, selection, logits, sharpness

    def forward(self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]``, ``labels [B]`` → a number."""
        with exactly(new):
            weights = selection_weights(self.old_head, old, labels, self.selection, self.logits, self.sharpness)
            losses, _ = self.old_head.losses(new, labels)
            return self._weighed(losses, weights, distributed.summed(self.old_head.knows(labels).sum()))


def selection_weights(
    old_head: Head,
    old: torch.Tensor,
    labels: torch.Tensor,
    selection: Selection = "entropy",
    logits: SelectionLogits = "head",
    sharpness: float | None = None,
) -> torch.Tensor:
    """λ(x) of every row, ``[B]``; 0 for rows of a class that the old head does not know. Over all processes they sum to 1."""
    if selection not in ("entropy", "least-confidence", "even"):
        raise ValueError(f"selection: {selection!r} is none of entropy, least-confidence, even")
    if logits not in ("head", "inner-products"):
        raise ValueError(f"logits: {logits!r} is none of head, inner-products")
    if sharpness is not None and selection == "even":
        raise ValueError("sharpness: rows of selection='even' weigh alike")
    if sharpness is not None and not (math.isfinite(sharpness) and sharpness > 0):
        raise ValueError(f"sharpness: {sharpness} is no finite number above 0")
    with torch.no_grad(), exactly(old):
        known = old_head.knows(labels)
        said = old_head(old) if logits == "head" else old_head.inner_products(old)
        log_p = torch.log_softmax(said.double(), dim=1)
        if selection == "entropy":
            measure = -(log_p.exp() * log_p).sum(dim=1)
        elif selection == "least-confidence":
            measure = log_p.gather(1, torch.where(known, labels, 0)[:, None])[:, 0].exp()
        else:
            measure = torch.zeros_like(log_p[:, 0])
        if sharpness is not None:
            measure = measure * (-sharpness if selection == "entropy" else sharpness)
        number = distributed.summed(known.sum())
        measures = torch.where(known, measure, -torch.inf)
        # Without a known row the sum is over nothing, and every weight is 0.
        whole = torch.logsumexp(distributed.gathered(measures), dim=0)
        share = torch.where(known, (measure - whole).exp(), 0.0)
        if selection == "entropy" and sharpness is None:
            many = (1 - share) / (number - 1).clamp(min=1)
            share = torch.where(number > 1, many, 1.0)
        return torch.where(known, share, 0.0)


class ForwardAdaptive(Loss):
    """DMU's forward adaptation (11): old vectors, sent through ψ, must be told apart by the NEW head, ``1/|B| Σ ℓ(ψ(o), ω_new)_y``.

    ψ (:class:`rehang.torch.ForwardHead`) and the new head learn; give it ``psi(old.detach())``.
    """

    def forward(self, adapted: torch.Tensor, labels: torch.Tensor, head: Head) -> torch.Tensor:
        """``adapted [B, d_new]``, ``labels [B]`` → a number."""
        with exactly(adapted):
            losses, _ = head.losses(adapted, labels)
            return self._reduced(losses)


class Regression(Loss):
    """DMU's regression variant (14 in 10 and 11): ``Σ λ(x)·(1 − cos(v, o)) + 1/|B| Σ (1 − cos(ψ(o), v))``.

    λ as in :class:`Selective` among the rows whose class ``old_head`` knows, which have |K|/|B| of the whole; all others weigh 1/|B| each, as all do
    without a head. The second part is there where ``adapted`` is given; with ``stop_gradient`` φ_new gets no gradient from it.
    """

    def __init__(
        self,
        old_head: Head | None = None,
        selection: Selection = "entropy",
        *,
        stop_gradient: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.old_head, self.selection, self.stop_gradient = old_head, selection, stop_gradient

    def forward(
        self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor, adapted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]``, ``labels [B]``, ``adapted [B, d_new]`` → a number."""
        with exactly(new):
            given = new.dtype
            new, old = wide(new), wide(old.detach())
            rows = distributed.summed(torch.tensor(float(len(labels)), device=new.device)).clamp(min=1.0)
            weights = torch.ones(len(labels), dtype=torch.float64, device=new.device) / rows
            if self.old_head is not None:
                known = self.old_head.knows(labels)
                number = distributed.summed(known.sum())
                selected = selection_weights(self.old_head, old, labels, self.selection)
                weights = torch.where(known, selected * number / rows, weights)
            toward_old = 1 - (unit(as_wide_as(new, old.shape[1]), given) * unit(old)).sum(dim=1)
            loss = self._weighed(toward_old, weights, rows)
            if adapted is not None:
                target = new.detach() if self.stop_gradient else new
                apart = 1 - (unit(wide(adapted), adapted.dtype) * unit(target, given)).sum(dim=1)
                loss = loss + self._reduced(apart)
            return loss


class VectorDistance(Loss):
    """New vectors where the old ones are (BCT 3), the naive baseline: ``1/|B| Σ ‖v − o‖²``."""

    def forward(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]`` → a number."""
        with exactly(new):
            new, old = wide(new), wide(old.detach())
            return self._reduced((as_wide_as(new, old.shape[1]) - old).square().sum(dim=1))


class HeadDistillation(Loss):
    """Learning without Forgetting (Li and Hoiem 2016): ``T²/|B| Σ KL(softmax(z_old(o)/T) ‖ softmax(z_old(v)/T))``, z_old the frozen old head's."""

    def __init__(self, old_head: Head, temperature: float = 2.0, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.old_head, self.temperature = old_head, temperature

    def forward(self, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]`` → a number."""
        with exactly(new):
            return self._reduced(divergence(self.old_head(old.detach()), self.old_head(new), self.temperature))


class FocalDistillation(Loss):
    """Focal distillation (Yan et al. 2020): what the old model had right is distilled more, by ``α + β·1[old right on x]``::

        features        1/|B| Σ_B (α + β·1[right])·‖v − o‖²
        probabilities   1/|K| Σ_K (α + β·1[right])·T²·KL(softmax(z_old(o)/T) ‖ softmax(z_new(v)/T))

    K are the rows whose class the old head knows; ``z_new`` are the new head's logits of the old head's classes. ``base`` is α, ``focus`` β.
    """

    def __init__(
        self,
        old_head: Head,
        form: Literal["features", "probabilities"] = "features",
        *,
        base: float = 1.0,
        focus: float = 5.0,
        temperature: float = 100.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if form not in ("features", "probabilities"):
            raise ValueError(f"form: {form!r} is none of features, probabilities")
        self.old_head, self.form = old_head, form
        self.base, self.focus, self.temperature = base, focus, temperature

    def forward(
        self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor, head: Head | None = None
    ) -> torch.Tensor:
        """``new [B, d_new]``, ``old [B, d_old]``, ``labels [B]`` → a number; ``probabilities`` take the new ``head``."""
        with exactly(new):
            classes = self.old_head.classes if head is None else min(self.old_head.classes, head.classes)
            logits = self.old_head(old.detach())[:, :classes]
            known = (labels >= 0) & (labels < classes)
            true = logits.gather(1, torch.where(known, labels, 0)[:, None])
            right = known & (logits <= true).all(dim=1)
            weights = self.base + self.focus * right.to(logits.dtype)
            if self.form == "features":
                new, old = wide(new), wide(old.detach())
                squares = (as_wide_as(new, old.shape[1]) - old).square().sum(dim=1)
                return self._reduced(weights * squares)
            if head is None:
                raise ValueError("head: focal distillation of probabilities needs the new head")
            apart = divergence(logits, head(new)[:, :classes], self.temperature)
            return self._reduced(weights * apart, known)


class BothHeads(Loss):
    """The old head's true class against all other classes of BOTH heads (OpenCompatible)::

        1/|K| Σ_K −log e^(z_old,y) / (Σ_j e^(z_old,j) + Σ_{j ≠ y} e^(z_new,j))
    """

    def __init__(self, old_head: Head, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.old_head = old_head

    def forward(self, new: torch.Tensor, labels: torch.Tensor, head: Head) -> torch.Tensor:
        """``new [B, d_new]``, ``labels [B]`` → a number."""
        with exactly(new):
            known = self.old_head.knows(labels)
            z_old, z_new = self.old_head(new, labels), head(new)
            classes = torch.arange(head.classes, device=labels.device)
            if head.taught is not None:
                classes, z_new = head.taught, z_new[:, head.taught]
            z_new = z_new.masked_fill(classes[None, :] == labels[:, None], -torch.inf)
            true = z_old.gather(1, torch.where(known, labels, 0)[:, None])[:, 0]
            losses = torch.logsumexp(torch.cat([z_old, z_new], dim=1), dim=1) - true
            return self._reduced(losses, known)


class FastFill(Loss):
    """FastFill's loss of an adapter (5): ``mean(a·e^(−s)·L + b·s)``, ``L = w_l2·L_l2 + w_disc·L_disc``, ``s = ψ(h) = log σ²``; without ψ, FCT's ``mean(L)``.

    Parameters
    ----------
    squared : str
        L_l2: ``mean`` over the coordinates (the authors' code), ``sum`` (3, as printed), ``variance`` for ``‖v − h‖²`` over the total variance of the
        new vectors, or ``cosine`` for ``1 − cos(h, v)``.
    squared_weight, discriminative_weight : float
        w_l2 and w_disc.
    head : Head, optional
        κ_new, frozen, for L_disc: cross-entropy with ``smoothing`` under ``softmax``, the margin's loss under the others. Rows of a class that it
        does not know have no L_disc.
    on_sphere : bool
        Whether a softmax head sees ``h/‖h‖``.
    loss_weight, log_weight, bound : float
        a, b, and where s is clamped: there ∂s is dropped where it would push s further out.
    variance : float, optional
        V, for ``squared="variance"``.
    """

    def __init__(
        self,
        *,
        squared: Literal["mean", "sum", "variance", "cosine"] = "mean",
        squared_weight: float = 1.0,
        head: Head | None = None,
        discriminative_weight: float = 1.0,
        smoothing: float = 0.1,
        on_sphere: bool = False,
        loss_weight: float = 0.5,
        log_weight: float = 0.5,
        bound: float = 60.0,
        variance: float | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if squared not in ("mean", "sum", "variance", "cosine"):
            raise ValueError(f"squared: {squared!r} is none of mean, sum, variance, cosine")
        if squared == "variance" and not (variance and variance > 0):
            raise ValueError("variance: the total variance of the new vectors, above 0, is needed for squared='variance'")
        self.squared, self.squared_weight, self.variance = squared, squared_weight, variance
        self.head, self.discriminative_weight = head, discriminative_weight
        self.smoothing, self.on_sphere = smoothing, on_sphere
        self.loss_weight, self.log_weight, self.bound = loss_weight, log_weight, bound

    def plain(self, adapted: torch.Tensor, new: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """L of every row, ``[B]``."""
        with exactly(adapted):
            losses = self.squared_weight * self._squared(adapted, new)
            if self.head is None or self.discriminative_weight == 0:
                return losses
            if labels is None:
                raise ValueError("labels: the discriminative part of the loss needs them")
            seen = unit(wide(adapted), adapted.dtype) if self.on_sphere else adapted
            smoothing = self.smoothing if self.head.form == "softmax" else 0.0
            disc, _ = self.head.losses(seen, labels, smoothing)
            return losses + self.discriminative_weight * disc

    def _squared(self, adapted: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        given = adapted.dtype
        adapted, new = wide(adapted), wide(new.detach())
        if self.squared == "cosine":
            return 1 - (unit(adapted, given) * unit(new)).sum(dim=1)
        squares = (new - adapted).square().sum(dim=1)
        return squares / {"mean": adapted.shape[1], "sum": 1.0, "variance": self.variance}[self.squared]

    def forward(
        self,
        adapted: torch.Tensor,
        new: torch.Tensor,
        labels: torch.Tensor | None = None,
        log_variance: torch.Tensor | None = None,
        *,
        warm_up: bool = False,
    ) -> torch.Tensor:
        """``adapted [B, d_new]`` (h), ``new [B, d_new]`` (v), ``labels [B]``, ``log_variance [B]`` (s) → a number.

        In the ``warm_up``, h learns from ``mean(a·L)`` while s learns from (5) with h held; give it ``ψ(h.detach())`` then.
        """
        with exactly(adapted):
            losses = self.plain(adapted, new, labels)
            if log_variance is not None:
                s = _bounded(wide(log_variance), self.bound)
                weighed = losses.detach() if warm_up else losses
                joint = self.loss_weight * torch.exp(-s.held) * weighed + self.log_weight * s.held
                slope = (self.log_weight - self.loss_weight * torch.exp(-s.held) * weighed).detach()
                # Descending along a positive slope lowers s: beyond a bound only the way back is open.
                outwards = (s.is_low & (slope > 0)) | (s.is_high & (slope < 0))
                stopped = self.loss_weight * torch.exp(-s.held.detach()) * weighed + self.log_weight * s.held.detach()
                joint = torch.where(outwards, stopped, joint)
                losses = joint + (self.loss_weight * (losses - losses.detach()) if warm_up else 0.0)
            return self._reduced(losses)


class _bounded:
    """s clamped to ±bound, with the derivative of s itself."""

    def __init__(self, s: torch.Tensor, bound: float) -> None:
        self.is_low, self.is_high = s <= -bound, s >= bound
        self.held = s + (s.clamp(-bound, bound) - s).detach()


class UncertaintyHead(torch.nn.Linear):
    """FastFill's ψ: one linear layer from h(o) to ``log σ²``, ``[B, d_new] → [B]``; not detached, and in full precision under autocast."""

    def __init__(self, d_new: int) -> None:
        super().__init__(d_new, 1)

    def forward(self, adapted: torch.Tensor) -> torch.Tensor:
        """``[B, d_new] → [B]``."""
        with exactly(adapted):
            return torch.nn.functional.linear(wide(adapted), self.weight, self.bias)[:, 0]


class LambdaOrthogonality(Loss):
    """The loss of λ-orthogonality (Ricci et al. 2025, arXiv 2509.16664) of a forward map F and a backward map B between two given models::

        1/|B| Σ ‖F(o) − B(v)‖² + 1/|B| Σ ‖B(v) − o‖² + w·SupCon + g·‖WWᵀ − I‖_F,   g = sigmoid(α(‖WWᵀ − I‖_F − λ))

    W is the weight of B, which may leave orthogonality as far as λ. SupCon (Khosla et al. 2020) is over F(o) and B(v) as two views of each
    row, at length 1, positives being all views of the class but the row itself. The last part is of no row: under ``sum`` and ``none`` it stands in each.

    Parameters
    ----------
    threshold : float
        λ.
    sharpness : float
        α.
    contrast_weight, temperature : float
        w, and the temperature of SupCon. With ``contrast_weight=0``, or without labels, it is left out.
    """

    def __init__(
        self,
        *,
        threshold: float = 12.0,
        sharpness: float = 1.0,
        contrast_weight: float = 1.0,
        temperature: float = 0.1,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.threshold, self.sharpness = threshold, sharpness
        self.contrast_weight, self.temperature = contrast_weight, temperature

    def forward(
        self,
        forward: torch.Tensor,
        backward: torch.Tensor,
        old: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``forward = F(o)``, ``backward = B(v)`` and ``old = o``, all ``[B, d]``; ``weight = W [d, d_new]``, ``labels [B]`` → a number."""
        with exactly(forward):
            given = forward.dtype, backward.dtype
            forward, backward, old = wide(forward), wide(backward), wide(old.detach())
            losses = (forward - backward).square().sum(dim=1) + (backward - old).square().sum(dim=1)
            if labels is not None and self.contrast_weight:
                views = torch.cat([unit(forward, given[0]), unit(backward, given[1])])
                of_views = self._contrast(views, torch.cat([labels, labels]))
                losses = losses + self.contrast_weight * 0.5 * (of_views[: len(old)] + of_views[len(old) :])
            return self._reduced(losses + self.orthogonality(weight))

    def orthogonality(self, weight: torch.Tensor) -> torch.Tensor:
        """The last part, of B's weight alone."""
        weight = wide(weight)
        square = weight @ weight.T - torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        total = square.square().sum()
        # A weight that is orthogonal to the last bit has no slope there.
        length = torch.where(total > 0, torch.where(total > 0, total, 1.0).sqrt(), 0.0)
        return torch.sigmoid(self.sharpness * (length - self.threshold)) * length

    def _contrast(self, views: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """SupCon of every view, which has the row's other view among its positives."""
        all_views, all_labels = distributed.gathered(views), distributed.gathered(labels)
        similarity = views @ all_views.T / self.temperature
        own = torch.zeros_like(similarity, dtype=torch.bool)
        first = _first_row(len(views), views)
        places = torch.arange(len(views), device=views.device)
        own[places, first + places] = True
        log_p = similarity - torch.logsumexp(similarity.masked_fill(own, -torch.inf), dim=1, keepdim=True)
        positive = (labels[:, None] == all_labels[None, :]) & ~own
        return -torch.where(positive, log_p, 0.0).sum(dim=1) / positive.sum(dim=1)


def _first_row(count: int, like: torch.Tensor) -> int:
    """Where this process's rows stand among those of all."""
    if distributed.world() == 1:
        return 0
    counts = distributed.gathered(torch.tensor([count], device=like.device))
    return int(counts[: torch.distributed.get_rank()].sum())


def divergence(old: torch.Tensor, new: torch.Tensor, temperature: float) -> torch.Tensor:
    """``T²·KL(softmax(old/T) ‖ softmax(new/T))`` of every row of logits, ``[B]``; no derivative flows into ``old``."""
    log_p = torch.log_softmax(old.detach() / temperature, dim=1)
    log_q = torch.log_softmax(new / temperature, dim=1)
    return temperature**2 * (log_p.exp() * (log_p - log_q)).sum(dim=1)


class _Cosines:
    """Cosines of a batch with all rows, of this process and others. Where widths differ, ``v`` is cut beside ``o`` and whole beside ``v_k``."""

    def __init__(
        self, new: torch.Tensor, old: torch.Tensor, labels: torch.Tensor, sister: torch.Tensor | None, *, with_new: bool
    ) -> None:
        given = new.dtype
        new, old = wide(new), wide(old.detach())
        cut, beside = unit(as_wide_as(new, old.shape[1]), given), unit(old)
        partner = beside if sister is None else unit(wide(sister.detach()))
        self.positive = (cut * partner).sum(dim=1)
        self.to_old = cut @ distributed.gathered(beside).T
        self.to_new: Any = None
        if with_new:
            whole = unit(new, given)
            self.to_new = whole @ distributed.gathered(whole).T
        self.others = labels[:, None] != distributed.gathered(labels)[None, :]

    def negatives(self, cosines: torch.Tensor, hardest: int | None) -> torch.Tensor:
        """The cosines with rows of other classes; −∞ for all others, and for all but the ``hardest`` where they are counted."""
        others = cosines.masked_fill(~self.others, -torch.inf)
        if hardest is None or hardest >= others.shape[1]:
            return others
        # Stable, so that of equal ones the first is taken.
        order = others.detach().sort(dim=1, descending=True, stable=True).indices
        kept = torch.zeros_like(self.others).scatter(1, order[:, :hardest], True)
        return others.masked_fill(~kept, -torch.inf)

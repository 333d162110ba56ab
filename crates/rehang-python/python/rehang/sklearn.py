"""An adapter as an estimator of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from . import _verbs


class Adapter(TransformerMixin, BaseEstimator):
    """The map from old to new vectors: ``fit(X_old, y=X_new)``, ``transform(X_old)``.

    It stands in pipelines, searches over parameters, and pickles. The target is the new vector of each row, ``[n, d_new]``, so the checks
    of scikit-learn that fit an estimator on classes or on one number a row do not apply to it.

    Parameters
    ----------
    method, distance, seed, epochs
        As those of :func:`rehang.fit`.

    Attributes
    ----------
    adapter_ : rehang.Adapter
        What was fitted.
    """

    def __init__(
        self, *, method: str = "auto", distance: _verbs.Distance = "l2", seed: int = 0, epochs: int | None = None
    ) -> None:
        self.method = method
        self.distance: _verbs.Distance = distance
        self.seed = seed
        self.epochs = epochs

    def fit(self, X: Any, y: Any, labels: Any = None) -> Adapter:
        """Learn the map.

        Parameters
        ----------
        X : array, ``[n, d_old]``
            Old vectors.
        y : array, ``[n, d_new]``
            New vectors of the same items.
        labels : array, ``[n]``, optional
            Classes.
        """
        if y is None:
            raise ValueError("rehang.sklearn.Adapter requires y to be passed, but the target y is None")
        X = validate_data(self, X, dtype="numeric")
        y = check_array(y, input_name="y")
        self.adapter_ = _verbs.fit(
            X, y, labels=labels, method=self.method, distance=self.distance, seed=self.seed, epochs=self.epochs
        )
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """Vectors of the new space, ``[n, d_new]``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype="numeric", reset=False)
        return self.adapter_.transform(X)

    def sigma(self, X: Any) -> npt.NDArray[np.float32]:
        """σ² of every row: the expected squared error of its vector, ``[n]``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype="numeric", reset=False)
        return self.adapter_.transform(X, return_sigma=True)[1]

    def score(self, X: Any, y: Any) -> float:
        """One minus the mean squared error, as a part of the variance of ``y``: 1 is a perfect map, 0 is the mean vector."""
        y = check_array(y, input_name="y")
        errors = ((self.transform(X) - y) ** 2).sum()
        return float(1 - errors / ((y - y.mean(axis=0)) ** 2).sum())

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Names of the coordinates: the new model's name and a number."""
        check_is_fitted(self)
        space = self.adapter_.new
        return np.array([f"{space.model}{place}" for place in range(space.dimension)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        # Vectors are float32, whatever goes in.
        tags.transformer_tags.preserves_dtype = []
        return tags

"""The old model, heard in the new space: for what cannot be re-embedded yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._verbs import Adapter


class Bridged:
    """A model whose vectors lie in the new space: the old model's, adapted.

    It has the ``encode`` of sentence-transformers; ``rehang.langchain`` and ``rehang.llama_index`` have a ``Bridged`` of their own. Its vectors
    are estimates: where the new model itself can embed, let it.

    Parameters
    ----------
    model : object with ``encode``, or callable
        The old model: gets a list of texts, gives rows ``[n, d_old]``.
    adapter : Adapter
        From its space to the new one.
    """

    def __init__(self, model: Any, adapter: Adapter) -> None:
        self.model = model
        self.adapter = adapter
        self._encode = getattr(model, "encode", model)

    def encode(
        self, sentences: str | Sequence[str], *, return_sigma: bool = False, **options: Any
    ) -> npt.NDArray[np.float32] | tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Rows ``[n, d_new]``, or one row ``[d_new]`` for one text; with ``return_sigma``, σ² too. Options are for the model."""
        alone = isinstance(sentences, str)
        rows = np.atleast_2d(np.asarray(self._encode([sentences] if alone else list(sentences), **options)))
        adapted, sigma2 = self.adapter.transform(rows, return_sigma=True, force=True, progress=False)
        made = (adapted[0], sigma2[0]) if alone else (adapted, sigma2)
        return made if return_sigma else made[0]

    def get_sentence_embedding_dimension(self) -> int:
        """Coordinates of a vector."""
        return self.adapter.new.dimension

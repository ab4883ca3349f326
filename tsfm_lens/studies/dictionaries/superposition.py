"""Features in superposition, planted in a model, for dictionaries to find.

In the model of :func:`superposed_features` every value of a series is a token with a
few of many features, and an MLP writes each feature along a direction of its own into a
space that has fewer dimensions than there are features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tsfm_lens import testing
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, load
from tsfm_lens.studies.dictionaries.dictionary import isotropic_directions

__all__ = ["Superposition", "superposed_features"]

FEATURES = 40
DIMENSIONS = 16
"""Of the space that the features are written into."""
FEATURES_OF_TOKEN = 3
WIDTH = 64
VOCABULARY = 4096
STEPS = 512


@dataclass(frozen=True, eq=False)
class Superposition:
    """Model with planted features.

    Attributes:
        lens: of the model, a Chronos of one encoder layer.
        directions: (feature, d_model), what the MLP of the encoder writes; of length 1.
    """

    lens: Lens
    directions: Tensor

    def series(self, count: int, seed: int) -> SeriesBatch:
        """Draw series (count, 512) of independent values, uniform between −1 and 1."""
        rng = np.random.default_rng(seed)
        return as_series(rng.uniform(-1, 1, (count, STEPS)))


def superposed_features(seed: int = 0) -> Superposition:
    """Plant 40 features in 16 dimensions of the stream after an MLP of Chronos.

    Each token has three features, along axes of its embedding. Each neuron of the MLP
    reads one axis, clears it, and writes the feature along its direction. All
    embeddings have length 1, so that the norm before the MLP changes nothing but the
    scale; attention writes nothing.

    Args:
        seed: draws directions, and the features of each token with their activities.

    Returns:
        The model and its directions.
    """
    generator = torch.Generator().manual_seed(seed)
    model = _blank()
    written = isotropic_directions(DIMENSIONS, FEATURES, generator)
    directions = torch.zeros(FEATURES, WIDTH)
    directions[:, FEATURES : FEATURES + DIMENSIONS] = written
    axes = torch.eye(WIDTH)[:FEATURES]
    # the norm divides a vector of length 1 by this
    gain = (1 / WIDTH + model.config.layer_norm_epsilon) ** 0.5
    embeddings = _embeddings(generator)
    block = model.encoder.block[0].layer[-1].DenseReluDense
    with torch.no_grad():
        model.shared.weight.copy_(embeddings)
        block.wi.weight.copy_(gain * axes)
        block.wo.weight.copy_((directions - axes).T)
    return Superposition(load(model), directions)


def _blank() -> Any:
    """Build a Chronos of one layer whose matrices are 0."""
    from transformers import T5ForConditionalGeneration

    config = testing.tiny("chronos").config
    settings = dict(config.chronos_config, n_tokens=VOCABULARY, context_length=STEPS)
    config.update(
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_ff": FEATURES,
            "num_layers": 1,
            "num_decoder_layers": 1,
            "chronos_config": settings,
        }
    )
    model = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            # the gains of norms are vectors, and stay 1
            if weight.ndim > 1:
                weight.zero_()
    return model


def _embeddings(generator: torch.Generator) -> Tensor:
    """Draw embeddings (token, width) of length 1, each of a few features."""
    order = torch.rand(VOCABULARY, FEATURES, generator=generator)
    chosen = order.topk(FEATURES_OF_TOKEN, dim=1).indices
    sizes = 0.3 + torch.rand(chosen.shape, generator=generator)
    return normalize(torch.zeros(VOCABULARY, WIDTH).scatter(1, chosen, sizes))

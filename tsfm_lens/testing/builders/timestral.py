"""Random Timestral."""

from __future__ import annotations

from typing import Any

import torch

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.wirings.timestral import LIBRARY, NAME
from tsfm_lens.testing.models import random_model

# no configuration can be read without network: of this shape (heads of 64, MLPs of 8/3 d_model, each fourth layer over
# variates too) are those with the stated sizes of the files, 21, 111, 490 and 837 MB in single precision
SIZES = {
    "5M": (4, 1, 256, 688),
    "28M": (6, 3, 384, 1024),
    "123M": (10, 5, 640, 1712),
    "209M": (12, 6, 768, 2048),
}
LEVELS = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)


def _native(*sizes: Any) -> Any:
    names = (
        "patch_size",
        "context_length",
        "block_size",
        "num_heads",
        "block_schedule",
        "d_model",
        "mlp_hidden_dim",
        "quantile_knots",
    )
    config = dict(zip(names, sizes, strict=True))
    # forecasts are hyperbolic sines of what the head gives
    model = random_model(NAME, config, {"head.projection": 0.3})
    query = model.representation.forecast_query
    query.data = torch.randn(query.shape, generator=torch.Generator().manual_seed(1))
    return LIBRARY.require().TimestralForecaster(model)


def tiny() -> Any:
    """Build a Timestral of three layers."""
    schedule = ("variate_time", "time", "time_variate")
    return _native(4, 56, 3, 4, schedule, 32, 48, DECILES)


def published(size: str) -> Any:
    """Build a Timestral of a published size."""
    heads, groups, width, hidden = SIZES[size]
    schedule = ("time", "time", "time", "time_variate") * groups
    return _native(32, 32768, 32, heads, schedule, width, hidden, LEVELS)

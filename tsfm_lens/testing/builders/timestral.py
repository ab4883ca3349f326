"""Random Timestral."""

from __future__ import annotations

from typing import Any

import torch

from tsfm_lens.models.wirings.timestral import LIBRARY, NAME
from tsfm_lens.testing.models import random_model


def tiny(size: str = "") -> Any:
    """Build a Timestral of three layers, or of a published size."""
    model = random_model(NAME, size)
    query = model.representation.forecast_query
    query.data = torch.randn(query.shape, generator=torch.Generator().manual_seed(1))
    return LIBRARY.require().TimestralForecaster(model)


published = tiny

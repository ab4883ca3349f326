"""Random Fracast."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.fracast import LIBRARY, NAME
from tsfm_lens.testing.models import random_config, random_model


def tiny(size: str = "") -> Any:
    """Build a Fracast of four stages, or of the published size."""
    parts = random_model(NAME, size)
    config = random_config(NAME, size)["config"]
    native = LIBRARY.require().FracastModel(parts["core"], parts["head"], config)
    native.config = config
    native.model = parts
    return native


published = tiny

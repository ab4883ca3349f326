"""Random Fracast."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.wirings.fracast import LIBRARY, NAME, VALUES
from tsfm_lens.testing.models import random_model


def _native(context: int, width: int, stages: int, steps: int) -> Any:
    model = {
        **VALUES["model"],
        "d_model": width,
        "W": context,
        "horizon": steps,
        "level_widths": [context],
        "n_stages": stages,
        "head_kind": "gather",
        "future_queries": 3,
        "future_patch": steps // 3,
        "head_d_ff": 96,
        "head_layers": 1,
        "head_fc_layers": 2,
        "head_fc_kernel": 3,
        "head_output_mode": "direct",
        "head_future_conv": True,
        "quantiles": list(DECILES),
        "dilation_base": 2,
        "kernel_size": 3,
        "ffn_mult": 1.5,
        "periodic_phase": True,
    }
    config = {"model": model, "pyramid": {"ratios": []}}
    parts = random_model(NAME, config, {"dw_weight": 0.6, "to_gb": 0.5})
    native = LIBRARY.require().FracastModel(parts["core"], parts["head"], config)
    native.config, native.model = config, parts
    return native


def tiny() -> Any:
    """Build a Fracast of four stages."""
    return _native(64, 16, 4, 12)


def published(size: str) -> Any:
    """Build a Fracast of the published size."""
    return _native(2048, 64, 10, 48)

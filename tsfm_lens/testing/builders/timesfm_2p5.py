"""Random TimesFM 2.5 of Google's package."""

from __future__ import annotations

import dataclasses
from typing import Any

from tsfm_lens.models.wirings.timesfm_2p5 import LIBRARY, module_class, wrap
from tsfm_lens.testing.models import spread_weights

GAINS = {"output_projection": 0.5, "output_head": 0.5}
"""Factors on the random weights of the head."""


def tiny() -> Any:
    """Build a TimesFM 2.5 of three layers."""
    full = LIBRARY.require(
        "timesfm.timesfm_2p5.timesfm_2p5_base"
    ).TimesFM_2p5_200M_Definition()
    change = dataclasses.replace
    width = 40
    patch = 8
    layer = change(
        full.stacked_transformers.transformer,
        model_dims=width,
        hidden_dims=24,
        num_heads=4,
    )
    emitted = len(full.quantiles) + 1
    # each step of the head has the mean and all quantiles
    heads = {}
    lengths = {"output_projection_point": 16, "output_projection_quantiles": 32}
    for name, steps in lengths.items():
        heads[name] = change(
            getattr(full, name),
            input_dims=width,
            hidden_dims=width,
            output_dims=steps * emitted,
        )
    definition = change(
        full,
        input_patch_len=patch,
        output_patch_len=16,
        output_quantile_len=32,
        tokenizer=change(
            full.tokenizer, input_dims=2 * patch, hidden_dims=width, output_dims=width
        ),
        stacked_transformers=change(
            full.stacked_transformers, num_layers=3, transformer=layer
        ),
        **heads,
    )
    # an attribute of the class and no field, so that `replace` cannot change it; and
    # the dataclass is frozen
    object.__setattr__(definition, "context_limit", 2048)
    # the library reads the configuration from the class, when the module is built
    module = type("TinyTimesFM", (module_class(),), {"config": definition})()
    return wrap(spread_weights(module.to("cpu"), GAINS))


def published(size: str) -> Any:
    """Build a TimesFM 2.5 of the published size."""
    return wrap(spread_weights(module_class()(), GAINS))

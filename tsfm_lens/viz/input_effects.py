"""Effects of the input over many items."""

from __future__ import annotations

from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.summary import summary

generic_figure(
    "input_effects",
    "size",
    "Size of each segment's effect over the series.",
    table=("effect", "size", "value"),
    sentences=summary(
        "Largest effects of segments on forecasts{size:basis}: {size:largest MASE}.",
        effect="size",
        noun="segments",
    ),
)

"""Sizes of the models of the tsfm-lens paper, and tokens of its test of induction."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tsfm_lens.core.errors import InputError, MissingExtraError
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, load
from tsfm_lens.models.run import Run
from tsfm_lens.probes.induction import frequent_tokens
from tsfm_lens.studies.papers.context import Context, MeasuredValues, measure
from tsfm_lens.testing import published

# by architecture: the name that the paper gives the model, and its published size
SIZES = {
    "timesfm-2.5": ("TimesFM 2.5", "200m"),
    "chronos": ("Chronos", "base"),
    "chronos-bolt": ("Chronos-Bolt", "base"),
    "toto-1": ("Toto 1.0", "Open-Base-1.0"),
    "moirai-1.1": ("Moirai 1.1", "base"),
}
MOTIF = 32
REPEATS = 4


@measure("S3-SYS")
def sizes(context: Context) -> MeasuredValues:
    """Count parameters in millions, layers, heads and steps per token.

    The models are built at the published sizes.
    """
    values = {}
    missing = []
    for architecture, (name, size) in SIZES.items():
        try:
            # unchecked, since nothing is forecast
            lens = load(published(architecture, size), check=False)
            values.update(_model_sizes(name, lens))
        except MissingExtraError:
            missing.append(name)
    # of this second size the paper gives the number of parameters alone
    small = load(published("chronos-bolt", "small"), check=False)
    values["Chronos-Bolt small: parameters"] = _millions(small)
    return MeasuredValues(
        values, {"not installed": ", ".join(missing)} if missing else {}
    )


def _model_sizes(name: str, lens: Lens) -> dict[str, float]:
    stack = lens.wiring.output_stack
    # the first stack is the one that reads the series
    reading_stack = lens.wiring.stacks[0]
    encoded = lens.encode(as_series(np.sin(np.arange(256.0))))
    spans = encoded.spans[reading_stack.name]
    return {
        f"{name}: parameters": _millions(lens),
        f"{name}: layers": stack.n_layers,
        f"{name}: heads per layer": stack.n_heads,
        # of the longest token, since special tokens cover no step
        f"{name}: steps per token": max(
            stop - start for start, stop in zip(spans.start, spans.stop, strict=True)
        ),
    }


def _millions(lens: Lens) -> float:
    """Count the parameters in millions."""
    return sum(part.numel() for part in lens.parameters()) / 1e6


@measure("S3-RRT")
def motif_tokens(runs: Iterator[Run]) -> MeasuredValues:
    """List the tokens of the repeated-random-tokens test."""
    lens = next(runs).lens
    if not hasattr(lens.adapter, "encode_tokens"):
        raise InputError(
            f"{lens.model_id} has no value tokens; the repeated-random-tokens test is"
            " of Chronos"
        )
    ids = frequent_tokens(lens)
    values = {
        "lowest token id": ids.min(),
        "highest token id": ids.max(),
        "tokens in a motif": MOTIF,
        "times it is shown": REPEATS,
    }
    vocabulary = lens.adapter.settings.n_tokens  # type: ignore[attr-defined]
    return MeasuredValues(values, {"tokens of the vocabulary": vocabulary})

"""Training rows by step number.

A :class:`SeriesSource` draws each batch from (seed, step) alone, so that a run can
resume. A batch crops, mixes, scales and shifts series of a :class:`Corpus`; what
families it draws from is set by each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsfm_lens.core.errors import unknown_name

STRIDES = (1, 2, 3)
STRIDE_SHARES = (0.7, 0.2, 0.1)
"""Share of rows that are read at every first, second and third step.

This gives more lengths of season from one corpus.
"""

SHORTEST = 16
"""Steps of the shortest context that is trained on."""

NOISE = (0.0, 0.0, 0.0, 0.02, 0.05, 0.15, 0.4)
"""Observation noise, in standard deviations of the row; each row draws one of them."""

FAR_SHARE = 0.25
"""Share of the rows with a level whose level is far from 0 relative to their spread."""

SHORT_SHARE = 0.2
"""Share of the rows whose context is cut short."""

LENGTH = 640
"""Steps of a row; a shorter series is padded with NaN on the left."""

MAX_SERIES = 3
CONCENTRATION = 1.5
"""Number of slices of a mixture, and parameter of the distribution of their weights.

Both are of TSMixup (Ansari et al. 2024, Chronos, algorithm 1).
"""


@dataclass(frozen=True)
class Corpus:
    """Rows of all families, (row, LENGTH), NaN where there is no value.

    ``rows`` has the first row of each family, and one past the last.
    """

    values: NDArray[np.float32]
    rows: Mapping[str, tuple[int, int]]


class Crops(NamedTuple):
    """Pieces of the corpus that a batch holds.

    Every array is (row, series of the row).
    """

    rows: np.ndarray
    starts: np.ndarray
    strides: np.ndarray


class SeriesSource:
    """Source of batches of raw series from a weighted mixture of families.

    A batch is drawn from (seed, step) alone.
    """

    def __init__(
        self, corpus: Corpus, *, seed: int, device: str | torch.device = "cpu"
    ) -> None:
        self.seed = seed
        self.families = corpus.rows
        self.device = torch.device(device)
        self.values = torch.from_numpy(corpus.values).to(self.device)
        present = ~np.isnan(corpus.values)
        # series are padded on the left: the first value that is present begins them
        self.first = present.argmax(axis=1)

    def choose(
        self,
        mix: Mapping[str, float],
        rng: np.random.Generator,
        count: int,
        length: int,
    ) -> Crops:
        """Choose crops of `length` steps, (count, 3).

        A row of "tsmixup" mixes up to three crops, others use the first.

        Returns:
            Series, start and stride of each crop.
        """
        # the order of a mapping must not change what is drawn
        names = sorted(name for name in mix if name != "tsmixup")
        for name in names:
            if name not in self.families:
                raise unknown_name("series family", name, [*self.families, "tsmixup"])
        weights = np.array([mix[name] for name in names])
        family = rng.choice(
            len(names), size=(count, MAX_SERIES), p=weights / weights.sum()
        )
        bounds = np.array([self.families[name] for name in names])[family]
        rows = rng.integers(bounds[..., 0], bounds[..., 1])
        available = LENGTH - self.first[rows]
        strides = rng.choice(STRIDES, p=STRIDE_SHARES, size=rows.shape)
        # a short series is read at every step rather than not at all
        strides = np.where(length * strides <= available, strides, 1)
        span = length * strides
        # a real series may be shorter than the crop: then it ends where the crop ends
        first = np.minimum(self.first[rows], LENGTH - span)
        offsets = rng.random(rows.shape) * (LENGTH - span - first + 1)
        starts = first + offsets.astype(np.int64)
        return Crops(rows, starts, strides)

    def batch(
        self,
        step: int,
        *,
        mix: Mapping[str, float],
        rows: int,
        context: int,
        horizon: int,
        far: float = FAR_SHARE,
        short: float = SHORT_SHARE,
    ) -> tuple[Tensor, Tensor]:
        """Return context (rows, context) and future (rows, horizon) of a training step.

        NaN where there is no value. Three in five rows get a level; a share `far` of
        these levels is far from 0 relative to the spread. A share `short` of all rows
        has a shorter context, down to 16 steps, uniform in its logarithm.
        """
        # numpy mixes both, so that neighbouring seeds and steps share no numbers
        rng = np.random.default_rng([self.seed, step])
        length = context + horizon
        crops = self.choose(mix, rng, rows, length)
        weights = draw_weights(rng, rows)
        is_mixture = rng.random(rows) < mix.get("tsmixup", 0.0) / sum(mix.values())
        # drawn and then overwritten, so that later draws do not depend on who is a
        # mixture
        weights[~is_mixture] = (1.0, 0.0, 0.0)
        noise = rng.standard_normal((rows, length), dtype=np.float32)
        spread = rng.choice(NOISE, (rows, 1))
        level = np.where(
            rng.random(rows) < far,
            # 2 to 200 standard deviations
            10 ** rng.uniform(0.3, 2.3, rows),
            rng.normal(0, 2.0, rows),
        )
        level = level * (rng.random(rows) < 0.6)
        sign = np.where(rng.random(rows) < 0.15, -1.0, 1.0)
        unit = np.exp(rng.normal(0, 2.0, rows))
        trimmed = np.exp(
            rng.uniform(np.log(min(SHORTEST, context)), np.log(context), rows)
        )
        is_short = rng.random(rows) < short
        visible_steps = np.where(is_short, np.rint(trimmed).astype(np.int64), context)

        # random numbers come from the CPU, so that a batch is the same on every device
        steps = crops.starts[..., None] + crops.strides[..., None] * np.arange(length)
        row_index = torch.from_numpy(crops.rows).to(self.device)[..., None]
        series = self.values[row_index, torch.from_numpy(steps).to(self.device)]
        mixture = tsmixup(series, self._to(weights), context)
        # not tsmixup with weight 1, which would scale the series
        series = torch.where(self._to(is_mixture)[:, None] > 0, mixture, series[:, 0])
        present = ~series.isnan()
        count = present.sum(1, keepdim=True).clamp(min=1)
        mean = series.nan_to_num(0.0).sum(1, keepdim=True) / count
        deviation = (
            torch.where(present, series - mean, 0.0).square().sum(1, keepdim=True)
            / count
        ).sqrt()
        # a flat series still gets noise and a level
        deviation = torch.where(deviation > 0, deviation, 1.0)
        series = series + deviation * (
            self._to(noise) * self._to(spread) + self._to(level)[:, None]
        )
        series = series * self._to(sign * unit)[:, None]
        past = series[:, :context]
        future = series[:, context:]
        visible = (
            torch.arange(context, device=self.device)[None]
            >= context - self._to(visible_steps)[:, None]
        )
        return torch.where(visible, past, torch.nan), future.contiguous()

    def _to(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(array, dtype=np.float32)).to(self.device)


def draw_weights(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Draw weights of the slices of mixtures, (count, 3).

    They are Dirichlet(1.5) over the first k of three slots, k uniform in 1..3.

    Returns:
        The weights, (count, 3), which sum to 1 in each row.
    """
    # normalised gamma draws are a Dirichlet draw, and dropping slots first gives one of
    # lower dimension
    gamma = rng.gamma(CONCENTRATION, size=(count, MAX_SERIES))
    gamma *= (
        np.arange(MAX_SERIES)[None]
        < rng.integers(1, MAX_SERIES + 1, size=count)[:, None]
    )
    return gamma / gamma.sum(axis=1, keepdims=True)


def tsmixup(slices: Tensor, weights: Tensor, context: int) -> Tensor:
    """Mix ``slices`` (count, 3, length) by ``weights`` (count, 3).

    Slices are scaled by their first ``context`` steps.

    Returns:
        The mixtures, (count, length).
    """
    scale = slices[..., :context].abs().nanmean(-1, keepdim=True).nan_to_num(1.0)
    parts = weights[..., None] * slices / torch.where(scale > 0, scale, 1.0)
    return torch.where(weights[..., None] > 0, parts, 0.0).sum(1)

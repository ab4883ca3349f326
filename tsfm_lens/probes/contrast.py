"""A clean and a corrupted batch that are run alike, so that activations of one can be put into the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.runs import Runs, runs_of

Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class Contrast:
    """Two batches of equal shape.

    Attributes:
        base: runs of the batch into which activations are put.
        source: runs of the batch that they come from.
        base_forecast, source_forecast: (series, step), unpatched.
        direction: "denoise" puts clean activations into the corrupted run, "noise" corrupted ones into the clean.
        base_acts, source_acts: what was recorded of both.
    """

    base: Runs
    source: Runs
    base_forecast: np.ndarray
    source_forecast: np.ndarray
    direction: Direction
    base_acts: Activations
    source_acts: Activations

    def recovered(self, forecasts: np.ndarray) -> np.ndarray:
        """How far forecasts (…, series, step) are on the way from the base's to the source's, (…, series).

        The projection on that way: 0 at the base's forecast, 1 at the source's.
        """
        way = self.source_forecast - self.base_forecast
        return ((forecasts - self.base_forecast) * way).sum(-1) / np.square(way).sum(-1)

    def effect(self, forecasts: np.ndarray) -> np.ndarray:
        """Mean distance of forecasts (…, series, step) from the base's, in data units, (…, series)."""
        return np.abs(forecasts - self.base_forecast).mean(-1)

    def dataset(self) -> xr.Dataset:
        """Context, both contexts' forecasts, and their coordinates."""
        clean, corrupted = (self.source, self.base) if self.direction == "denoise" else (self.base, self.source)
        data = context_dataset(clean.batch, clean.horizon)
        data["corrupted_context"] = context_dataset(corrupted.batch, clean.horizon)["context"]
        forecasts = {"source": self.source_forecast, "base": self.base_forecast}
        names = ("source", "base") if self.direction == "denoise" else ("base", "source")
        data["clean_forecast"] = (("series", "step"), forecasts[names[0]])
        data["corrupted_forecast"] = (("series", "step"), forecasts[names[1]])
        return data

    def parameters(self) -> dict[str, object]:
        """What a result should say about how it was run."""
        return {
            "direction": self.direction,
            "rollout": int(self.base.rollout),
            "statistic": self.base.statistic,
            "seed": self.base.seed,
            "horizon": self.base.horizon,
        }


def contrast(
    lens: Lens,
    clean: Any,
    corrupted: Any,
    horizon: int | None = None,
    *,
    names: Sequence[str],
    base_names: Sequence[str] = (),
    direction: Direction = "denoise",
    rollout: bool | None = None,
    along: Any = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> Contrast:
    """Run both batches once.

    Args:
        lens: the model.
        clean, corrupted: series of equal number and length.
        horizon, rollout, along, num_samples, seed: see :func:`tsfm_lens.probes.runs.runs_of`. In single forwards of a
            token model both decoders are forced along the same values: those of the base.
        names, base_names: hook points to record of the source and of the base.
        direction: see :class:`Contrast`.

    Raises:
        InputError: the batches differ in shape, the corruption does not change a forecast, or no such direction.
    """
    if direction not in ("denoise", "noise"):
        raise InputError(f"direction={direction!r} is not known, choose 'denoise' or 'noise'")
    pair = (as_series(clean), as_series(corrupted))
    if pair[0].lengths != pair[1].lengths:
        raise InputError(
            f"the clean series have lengths {pair[0].lengths}, the corrupted {pair[1].lengths}: their tokens must "
            "stand at the same positions, so corrupt values without adding or removing steps"
        )
    if not np.array_equal(pair[0].group_index, pair[1].group_index):
        raise InputError(
            "clean and corrupted series are grouped into items differently, so other variates would see each other"
        )
    if pair[0].ids != pair[1].ids and set(pair[0].ids) == set(pair[1].ids):
        raise InputError(
            f"clean series are in the order {', '.join(pair[0].ids)}, corrupted in {', '.join(pair[1].ids)}; "
            "corrupted.select(clean.ids) puts them in order"
        )
    source_batch, base_batch = pair if direction == "denoise" else pair[::-1]
    how: dict[str, Any] = {"rollout": rollout, "num_samples": num_samples, "seed": seed}
    base = runs_of(lens, base_batch, horizon, along=along, **how)
    source = runs_of(lens, source_batch, base.horizon, along=base.values if along is None else along, **how)
    base_forecast, base_acts = base.record(base_names or ["unembed.hook_out"])
    source_forecast, source_acts = source.record(names or ["unembed.hook_out"])
    same = (base.told_apart(source_forecast, base_forecast) == base_forecast).all(-1)
    if same.any():
        name = pair[0].ids[int(np.argmax(same))]
        raise InputError(
            f"clean and corrupted forecasts of series {name!r} are the same, so there is nothing to recover: corrupt "
            "more, or what the model reads"
        )
    return Contrast(base, source, base_forecast, source_forecast, direction, base_acts, source_acts)

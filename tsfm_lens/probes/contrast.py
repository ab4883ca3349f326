"""Contrast of a clean and a corrupted run, made alike, so that activations of one can be put into the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.models.noise import noise_floor, share_floor, told_apart
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge

Direction = Literal["denoise", "noise"]


@dataclass(frozen=True)
class RunPair:
    """Two runs, of batches of equal shape.

    Attributes:
        base: the run into which activations are put.
        source: the run that they come from.
        base_forecast, source_forecast: (series, step), unpatched.
        direction: "denoise" puts clean activations into the corrupted run, "noise" corrupted ones into the clean.
        base_acts, source_acts: recorded activations of both.
    """

    base: Run
    source: Run
    base_forecast: np.ndarray
    source_forecast: np.ndarray
    direction: Direction
    base_acts: Activations
    source_acts: Activations

    def recovered(self, forecasts: np.ndarray) -> np.ndarray:
        """Measure how far forecasts (…, series, step) are on the way from base to source, (…, series).

        This is a projection: 0 at the base's forecast, 1 at the source's.
        """
        way = self.source_forecast - self.base_forecast
        return ((forecasts - self.base_forecast) * way).sum(-1) / np.square(way).sum(-1)

    def effect(self, forecasts: np.ndarray) -> np.ndarray:
        """Compute the mean distance of forecasts (…, series, step) from the base's, in data units, (…, series)."""
        return np.abs(forecasts - self.base_forecast).mean(-1)

    def judged(self, data: xr.Dataset, groups: xr.DataArray | None = None) -> xr.Dataset:
        """Add intervals, floors of both runs, and what stands out, for the effects that a result holds.

        Args:
            data: with ``recovered``, ``first_order`` or ``score``, shares of the way, and ``effect``.
            groups: see :func:`tsfm_lens.probes.findings.judge`.
        """
        runs = (self.base, self.source)
        way = self.source_forecast - self.base_forecast
        for name in ("recovered", "first_order", "score"):
            if name in data:
                floor = np.fmax(*(share_floor(run, way) for run in runs))
                data = judge(data, name, floor=floor, signed=True, groups=groups)
        if "effect" in data:
            floor = np.fmax(*(noise_floor(run, lambda a, b: np.abs(a - b).mean(-1)) for run in runs))
            data = judge(data, "effect", floor=floor, groups=groups)
        return data

    def dataset(self) -> xr.Dataset:
        """Return both contexts, both forecasts, and their coordinates."""
        clean, corrupted = (self.source, self.base) if self.direction == "denoise" else (self.base, self.source)
        axes = ("series", "step")
        forecasts = {"clean_forecast": (axes, clean.point), "corrupted_forecast": (axes, corrupted.point)}
        return clean.dataset().assign({"corrupted_context": corrupted.dataset()["context"]} | forecasts)

    def parameters(self) -> dict[str, object]:
        """Return attributes that say how a result was run."""
        return {
            "direction": self.direction,
            "rollout": int(self.base.rollout),
            "statistic": self.base.statistic,
        }


def contrast(
    clean: Run,
    corrupted: Run,
    *,
    names: Sequence[str],
    base_names: Sequence[str] = (),
    direction: Direction = "denoise",
) -> RunPair:
    """Record both runs.

    Args:
        clean, corrupted: runs of series of equal number and length, made alike. In single forwards of a token model the
            source follows the base's path, so that both decoders read the same values; a source with a ``forced_path``
            of its own keeps it.
        names, base_names: hook points to record of the source and of the base.
        direction: see :class:`RunPair`.

    Raises:
        InputError: the runs are not made alike, the batches differ in shape, the corruption does not change a forecast,
            or no such direction.
    """
    if direction not in ("denoise", "noise"):
        raise InputError(f"direction={direction!r} is not known, choose 'denoise' or 'noise'")
    _refuse_unlike(clean, corrupted)
    source, base = (clean, corrupted) if direction == "denoise" else (corrupted, clean)
    if base.tokens_read and not base.rollout and source.forced_path is None:
        source = source.following(base.path)
    base_acts, source_acts = _record(base, base_names), _record(source, names)
    same = (told_apart(base, source.point, base.point) == base.point).all(-1)
    if same.any():
        name = clean.batch.ids[int(np.argmax(same))]
        raise InputError(
            f"clean and corrupted forecasts of series {name!r} are the same, so there is nothing to recover: corrupt "
            "more, or what the model reads"
        )
    return RunPair(base, source, base.point, source.point, direction, base_acts, source_acts)


def _record(run: Run, names: Sequence[str]) -> Activations:
    return run.record(names) if names else Activations(run.lens.registry.points, run.rollout, run.batch.ids)


def _refuse_unlike(clean: Run, corrupted: Run) -> None:
    if clean.lens is not corrupted.lens:
        raise InputError(
            f"the clean run is of {clean.lens.model_id}, the corrupted of {corrupted.lens.model_id} as another lens; "
            "make both with the same lens"
        )
    for what in ("horizon", "rollout", "num_samples", "seed"):
        of_clean, of_corrupted = getattr(clean, what), getattr(corrupted, what)
        if of_clean != of_corrupted:
            raise InputError(
                f"the clean run has {what} {of_clean}, the corrupted {of_corrupted}; make both with the same {what}"
            )
    batch, other = clean.batch, corrupted.batch
    if batch.lengths != other.lengths:
        raise InputError(
            f"the clean series have lengths {batch.lengths}, the corrupted {other.lengths}: their tokens must "
            "stand at the same positions, so corrupt values without adding or removing steps"
        )
    if not np.array_equal(batch.group_index, other.group_index):
        raise InputError(
            "clean and corrupted series are grouped into items differently, so other variates would see each other"
        )
    if batch.ids != other.ids and set(batch.ids) == set(other.ids):
        raise InputError(
            f"clean series are in the order {', '.join(batch.ids)}, corrupted in {', '.join(other.ids)}; "
            "corrupted.select(clean.batch.ids) puts them in order"
        )

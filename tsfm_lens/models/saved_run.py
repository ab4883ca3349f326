"""NetCDF file of a run: its series, forecast, path, settings, provenance and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.extensions import method_of
from tsfm_lens.models.forecast import Forecast
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.places import replacing, writing_to

_KIND = "run"


@method_of("Run")
def to_dataset(run: Run) -> xr.Dataset:
    """Return the whole run as a dataset: series, truth, forecast, path, settings, provenance and cost."""
    forecast, batch = run.forecast, run.batch
    data = forecast.to_dataset(run.truth)
    data["mean"] = (("series", "step"), forecast.mean)
    if run.tokens_read:
        data["path"] = (("series", "step"), run.path)
    if run.horizon <= run.lens.adapter.longest_pass or run.rollout:
        data["point"] = (("series", "step"), run.point)
    rows = {
        "length": list(batch.lengths),
        "start": [start.isoformat() if start is not None else "" for start in batch.starts],
        "freq": [freq or "" for freq in batch.freqs],
        "seasonality": list(batch.seasonalities),
        "group": list(batch.groups),
        "variate": list(batch.variates),
    }
    if batch.has_covariates:
        longest = max((0 if future is None else len(future)) for future in batch.futures)
        futures = np.full((len(batch), longest), np.nan)
        for row, future in zip(futures, batch.futures, strict=True):
            if future is not None:
                row[: len(future)] = future
        data["future"] = (("series", "future_step"), futures)
        rows["categories"] = [json.dumps(names) for names in batch.categories]
    data = data.assign_coords({name: ("series", values) for name, values in rows.items()})
    cost = {f"seconds_{part}": round(seconds, 3) for part, seconds in run.cost.items()}
    settings = {
        "rollout": int(run.rollout),
        "explicit_horizon": int(run.explicit_horizon),
        "forced": int(run.forced_path is not None),
        "samples_asked": run.num_samples or 0,
        "statistic": run.statistic,
        "notes": json.dumps(batch.notes),
    }
    title = f"Forecast of {len(batch)} series over {run.horizon} steps"
    data.attrs = {**run.describe(_KIND, title, "tsfm-lens: one forecast, recorded once"), **settings, **cost}
    return data


@method_of("Run")
def to_netcdf(run: Run, path: str | Path) -> Path:
    """Write the run to one file, which :func:`open_run` reads.

    Raises:
        InputError: the file cannot be written; one that was there stays as it was.
    """
    target = Path(path)
    data = to_dataset(run)
    # netCDF 3 has neither 64-bit integers nor timestamps of its own
    data = data.drop_vars([name for name in ("context_timestamp", "forecast_timestamp") if name in data.coords])
    with writing_to(target), replacing(target) as part:
        data.to_netcdf(part, engine="scipy")
    return target


def open_run(lens: Lens, path: str | Path) -> Run:
    """Open a run that :meth:`Run.to_netcdf` has written, of the same model.

    Args:
        lens: the model that made it.
        path: the file.

    Raises:
        InputError: the file is no run, or one of another model.

    Example:
        >>> models.open_run(lens, run.to_netcdf(folder / "run.nc")).batch.ids
        ('co2',)
    """
    try:
        with xr.open_dataset(path, engine="scipy") as file:
            data = file.load()
    except (OSError, ValueError, TypeError, IndexError, KeyError) as error:
        raise InputError(f"{path} cannot be read as a run: {error}") from error
    if data.attrs.get("kind") != _KIND:
        raise InputError(f"{path} holds a result of kind {data.attrs.get('kind', 'none')!r}, expected a run")
    for fact in ("model", "architecture"):
        here = lens.provenance()[fact]
        if data.attrs.get(fact) != here:
            raise InputError(f"{path} is a run of {fact} {data.attrs.get(fact)!r}, and this lens holds {here!r}")
    batch = _batch_of(data)
    forced_path = data["path"].values if data.attrs["forced"] else None
    settings: dict[str, Any] = {
        "num_samples": int(data.attrs["samples_asked"]) or None,
        "seed": int(data.attrs["seed"]),
    }
    truth = data["truth"].values if "truth" in data else None
    run = lens.run(
        batch, data.sizes["step"], truth=truth, forced_path=forced_path, rollout=bool(data.attrs["rollout"]), **settings
    )
    samples = data["sample"].values if "sample" in data else None
    levels = tuple(float(level) for level in data["quantile"].values)
    quantiles, mean = data["quantile_forecast"].values, data["mean"].values
    facts = {name: data.attrs[name] for name in lens.provenance() if name in data.attrs} | {"seed": run.seed}
    run.__dict__["forecast"] = Forecast(quantiles, levels, mean, samples, batch, facts)
    for name in ("path", "point"):
        if name in data:
            run.__dict__[name] = data[name].values
    return run


def _batch_of(data: xr.Dataset) -> SeriesBatch:
    texts = {
        name: [str(value) for value in data[name].values] for name in ("start", "freq", "units", "group", "variate")
    }
    lengths = [int(length) for length in data["length"].values]
    return SeriesBatch(
        tuple(row[len(row) - length :] for row, length in zip(data["context"].values, lengths, strict=True)),
        tuple(str(name) for name in data["series"].values),
        starts=tuple(pd.Timestamp(text) if text else None for text in texts["start"]),
        units=tuple(texts["units"]),
        notes=tuple(json.loads(data.attrs["notes"])),
        freqs=tuple(text or None for text in texts["freq"]),
        seasonalities=tuple(int(np.asarray(season)) for season in data["seasonality"].values),
        groups=tuple(texts["group"]),
        variates=tuple(texts["variate"]),
        **(_covariates_of(data) if "role" in data.coords else {}),
    )


def _covariates_of(data: xr.Dataset) -> dict[str, Any]:
    roles = tuple(str(role) for role in data["role"].values)
    futures = [row[np.isfinite(row)] for row in data["future"].values]
    names = [json.loads(str(text)) for text in data["categories"].values]
    return {
        "roles": roles,
        "futures": tuple(row if role == "known" else None for row, role in zip(futures, roles, strict=True)),
        "categories": tuple(None if each is None else tuple(each) for each in names),
    }

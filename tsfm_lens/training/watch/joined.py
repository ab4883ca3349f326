"""Several runs or seeds as one dataset, to be drawn over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError

__all__ = ["together"]

_NUMERIC_AXES = ("step", "snapshot", "first", "second")


def together(runs: Mapping[str, xr.Dataset | Sequence[xr.Dataset]]) -> xr.Dataset:
    """Join datasets of one kind over a new axis ``run``, and ``seed`` where a run has several.

    Args:
        runs: a dataset by name, or one a seed; of kind "training_watch", "attention_norms" or "loss_landscape".

    Returns:
        Dataset of the same kind over all steps, layers and heads that occur, NaN where a run has none, with ``run``
        first and then ``seed``, counted from 0.

    Raises:
        InputError: no run, or datasets of several kinds.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> watch = training.Watch(model, every=1)
        >>> _ = watch(0, loss=1.0)
        >>> dict(training.together({"Adam": watch.dataset(), "SAM": [watch.dataset()] * 2})["loss"].sizes)
        {'run': 2, 'seed': 2, 'step': 1}
    """
    each = {name: [datasets] if isinstance(datasets, xr.Dataset) else list(datasets) for name, datasets in runs.items()}
    every = [ds for datasets in each.values() for ds in datasets]
    if not every or not all(each.values()):
        raise InputError("no dataset of a run; expected at least one for each name")
    kinds = {str(ds.attrs.get("kind")) for ds in every}
    if len(kinds) > 1:
        raise InputError(f"datasets of kinds {', '.join(sorted(kinds))}; runs are laid over each other of one kind")
    labels = {dim: _union(str(dim), every) for dim in dict.fromkeys(dim for ds in every for dim in ds.dims)}
    sizes = {
        name: _of_layers(name, every) for name in ("n_queries", "n_keys") if any(name in ds.coords for ds in every)
    }
    seeds = max(map(len, each.values()))
    rows = []
    for datasets in each.values():
        wide = [_spread(ds.drop_vars(("n_queries", "n_keys"), errors="ignore"), labels) for ds in datasets]
        row = xr.concat(wide, "seed", data_vars="all", join="exact", combine_attrs="override")
        rows.append(row.assign_coords(seed=range(len(datasets))).reindex(seed=range(seeds)))
    data = xr.concat(rows, "run", data_vars="all", join="exact", combine_attrs="override").assign_coords(run=list(each))
    data = data.assign_coords(
        {name: ("layer", [by_layer[layer] for layer in labels["layer"]]) for name, by_layer in sizes.items()}
    )
    data = data.isel(seed=0, drop=True) if seeds == 1 else data
    data.attrs = {**every[0].attrs, "model": ", ".join(each)}
    return data


def _union(dim: str, every: Sequence[xr.Dataset]) -> list:
    """Unite the labels along an axis: numbers sorted, names in the order of the first dataset that has them."""
    columns = [ds[dim].values for ds in every if dim in ds.dims]
    labels = list(dict.fromkeys(label for values in columns for label in values.tolist()))
    return sorted(labels) if dim in _NUMERIC_AXES or not isinstance(labels[0], str) else labels


def _spread(ds: xr.Dataset, labels: Mapping) -> xr.Dataset:
    missing = {dim: np.arange(ds.sizes[dim]) for dim in ds.dims if dim not in ds.coords}
    return ds.assign_coords(missing).reindex({dim: labels[dim] for dim in ds.dims})


def _of_layers(name: str, every: Sequence[xr.Dataset]) -> dict[str, int]:
    """Return queries or keys by layer."""
    sizes: dict[str, int] = {}
    for ds in every:
        if name in ds.coords:
            sizes |= dict(zip(ds["layer"].values.tolist(), ds[name].values.tolist(), strict=True))
    return sizes

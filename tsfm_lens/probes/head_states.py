"""Data of the linked view of all heads.

:func:`head_states` gathers, of every head, what it reads and writes, and of every
component the forecast without it. It computes little: attention, attribution, spectra
and ablations come from the probes of these names. The view is in ``report.explore``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.registry import probe
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models.noise import marked_dataset
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import (
    attention_patterns,
    check_variates,
    forecast_queries,
    normalise,
    select_attention,
)
from tsfm_lens.probes.attribution import decomposed, of_median
from tsfm_lens.probes.weights import head_spectra
from tsfm_lens.probes.zero_ablation import ablation_effects

__all__ = ["head_states"]

# of a report; each series adds its attention and its forecasts to the page
_MAX_SERIES = 8


def _some_series(results: Any) -> tuple[Run]:
    """Return the first items of a report's run.

    All series are taken where none may be left out.
    """
    run = results.run
    if results.item is None:
        return (run,)
    # by item, so that a target keeps its covariates
    return (run.select(np.flatnonzero(run.batch.group_index < _MAX_SERIES).tolist()),)


@probe(
    _some_series,
    title="One head at a time",
    theme="Activations",
    summary=(
        "what each head reads and writes, its spectra, and the forecast without it; "
        "live in `run.explore()`"
    ),
    description=(
        "The heads of the last attention over time before the output head: where "
        "each looks, how far the forecast moves without it (as in the ablation of "
        "single components), and the forecast with and without one of them. In a "
        "notebook, run.explore() shows what the head that you click attends to, and "
        "the forecast without any set of heads and MLPs or any stretch of the past."
    ),
    source=(
        "tsfm-lens paper, sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT,"
        " S3-SRANK)"
    ),
    needs="heads",
    computes="`probes.head_states` on the first 8 series",
    each=lambda lens: {"head_states": {}} if select_attention(lens) else {},
    cost="search",
)
def head_states(
    run: Run, *, kind: str | None = None, progress: Progress | None = None
) -> xr.Dataset:
    """Collect the attention, writes and scores of the heads of one kind.

    The forecast without each component is part of the result.

    Args:
        run: the forecast to explain.
        kind: kind of attention of the output stack; its last kind over time if None.
        progress: called with the components ablated so far and their number.

    Returns:
        Dataset of kind "head_states". Over (series, layer, head):

        - ``entropy``: in nats.
        - ``normalised_entropy``: min-max scaled over heads, 0 to 1.
        - ``write`` (…, step): the head's part of the forecast, in data units.
        - ``write_size``: its mean absolute value, without a token decoder's first step.
        - ``write_share``: this over all components' sum.
        - ``attention`` (…, query, key): weights on the tokens of the past, of the
          queries that the forecast is read from. ``step_query`` (step) is each step's
          query.
        - ``lag``: distance back, in steps, at which the mean over steps is largest. It
          runs from the first step of a query (``query_start``) to the first of a token
          (``key_start`` to ``key_stop``).
        - ``lag_share``: that mean.
        - ``place``: the token whose mean is largest.
        - ``place_share``: that mean.
        - ``attention_forecast``, ``attention_other``: means on forecast tokens, and on
          special ones and padding.

        Of components, which are every head and MLP of the output stack:

        - ``mean_shift`` (component, series): mean absolute change of the forecast
          without it, in data units, with ``_acts`` and ``_floor``.
        - ``spearman_distance`` (component, series): 1 - rank correlation of both
          forecasts.
        - ``forecast`` (component, series, step), ``baseline_forecast`` (series, step):
          in data units, of a token model expected values along the run's one path.
        - ``quantile_forecast`` (series, quantile, step): the library's own forecast.
        - ``stable_rank`` (product, layer, head).
        - ``singular_value`` (product, layer, head, mode).

        Coordinate ``name`` has the heads' components. Attribute ``special`` lists the
        special tokens among the keys.

    Source:
        tsfm-lens paper: sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT,
        S3-SRANK).

    Raises:
        InputError: several variates, a horizon longer than one pass, or attention
            between variates.
        UnknownNameError: the stack has no such kind of attention.

    Example:
        >>> dict(probes.head_states(run.shortened(2))["attention"].sizes)
        {'series': 1, 'layer': 3, 'head': 4, 'query': 2, 'key': 128}
    """
    rows = check_variates(run, covariates=True)
    maps = [attention_patterns(run.select([row]), kind=kind) for row in rows]
    first = maps[0]
    attention = str(first.attrs["attention"])
    stack = str(first.attrs["stack"])
    data = (
        marked_dataset(run)
        .isel(series=rows)
        .assign_coords(layer=first["layer"], head=first["head"])
    )
    axes = ("layer", "head")
    heads = [
        [Component(stack, int(layer), attention, int(head)) for head in first["head"]]
        for layer in first["layer"]
    ]
    names = [[str(head) for head in row] for row in heads]
    data = data.assign_coords(name=(axes, names))
    data.update(_over_series([past_attention(view) for view in maps], data["series"]))
    # by series, as normalise() takes the smallest and largest of all that it is given
    data["normalised_entropy"] = data["entropy"].groupby("series").map(normalise)
    data.update(
        head_spectra(run.lens, kind=attention).sel(layer=data["layer"])[
            ["singular_value", "stable_rank"]
        ]
    )
    # logits, the default of token models, have no data units
    parts = decomposed(run, "expected_value" if run.tokens_read else None).isel(
        decomposition=0
    )
    decomposition = str(parts["decomposition"].item())
    attribution = of_median(parts["attribution"])
    order = attribution["component"].values.tolist()
    # (layer, head): the row of each head among all components
    head_rows = [list(map(order.index, row)) for row in names]
    writes = attribution.transpose("series", "component", "step").values[rows]
    # the first step of a token decoder reads no value, so it counts in no mean
    sizes = np.abs(writes[..., run.first_step :]).mean(axis=-1)
    series_axes = ("series", *axes)
    data["write"] = ((*series_axes, "step"), writes[:, head_rows])
    data["write_size"] = (series_axes, sizes[:, head_rows])
    total = sizes.sum(axis=-1)
    data["write_share"] = data["write_size"] / xr.DataArray(
        np.where(total > 0, total, 1.0), dims="series"
    )
    effects = ablation_effects(
        run, components=writers(run.lens.wiring), progress=progress
    )
    data = data.merge(_select_effects(effects.isel(series=rows)))
    levels = list(run.forecast.levels)
    quantiles = run.forecast.quantiles[rows]
    data = data.assign_coords(quantile=levels).assign(
        quantile_forecast=(("series", "quantile", "step"), quantiles)
    )
    special = " ".join(sorted({*first["key_special"].values.tolist()} - {""}))
    data.attrs = {
        "stack": stack,
        "attention": attention,
        "decomposition": decomposition,
        "special": special,
        "statistic": run.statistic,
        "write_to": "expected value" if run.tokens_read else "median",
        "first_step": run.first_step,
    }
    return data


_EFFECT_VARIABLES = (
    "mean_shift",
    "mean_shift_acts",
    "mean_shift_floor",
    "spearman_distance",
    "forecast",
    "baseline_forecast",
)


def _select_effects(effects: xr.Dataset) -> xr.Dataset:
    """Return what the linked view needs of an ablation.

    Coordinates are renamed, since ``head`` is a dimension of the view.
    """
    retained = effects[[name for name in _EFFECT_VARIABLES if name in effects]]
    coords = {
        "kind": "component_kind",
        "layer": "component_layer",
        "head": "component_head",
    }
    unused = [name for name in retained.coords if name not in ("component", *coords)]
    return retained.rename(coords).drop_vars(unused)


def _over_series(views: list[xr.Dataset], series: xr.DataArray) -> xr.Dataset:
    """Return the attention of several series along one dimension.

    A short series has fewer tokens, which end where all others' end.
    """
    shared = views[0][["query_start", "step_query"]]
    separate = [view.drop_vars(list(shared)) for view in views]
    # keys are numbered back from the forecast, so an outer join aligns their ends
    missing = {"attention": 0.0, "key_start": 0, "key_stop": 0}
    joined = xr.concat(
        separate, series.variable, data_vars="all", join="outer", fill_value=missing
    )
    return joined.drop_vars("series").merge(shared)


def past_attention(maps: xr.Dataset) -> xr.Dataset:
    """Return which tokens of the past the heads of one series attend to.

    The result holds the lag and the token where the mean over forecast steps is
    largest.
    """
    queries = forecast_queries(maps)
    pattern = maps["pattern"].values[:, :, queries].astype(float)
    start = maps["key_start"].values
    stop = maps["key_stop"].values
    ordinary = maps["key_special"].values == ""
    # tokens that end before the context begins are padding
    past = ordinary & (start < 0) & (stop > int(maps["time"].values[0]))
    ahead = ordinary & (start >= 0)
    # what is read from a token of the past begins with the forecast
    begin = np.maximum(maps["query_start"].values[queries], 0)
    # a step belongs to the last query that begins at it or before
    step_query = np.searchsorted(begin, np.arange(maps.sizes["step"]), side="right") - 1
    # a query weighs as many steps as it forecasts, so every step has the same weight
    step_shares = np.bincount(step_query, minlength=len(queries)) / maps.sizes["step"]
    # (layer, head, key)
    mean = np.einsum("lhqk,q->lhk", pattern, step_shares)
    weights = pattern[..., past]
    token_shares = mean[..., past]
    distances = begin[:, None] - start[past]
    lags, lag_indices = np.unique(distances, return_inverse=True)
    sums = np.zeros((len(lags), *mean.shape[:2]))
    # reshaped, as versions of numpy differ in the shape of the inverse
    for query, lag_index in enumerate(lag_indices.reshape(distances.shape)):
        # tokens at one distance add up, of which a plain assignment would keep the last
        np.add.at(
            sums,
            lag_index,
            step_shares[query] * np.moveaxis(weights[:, :, query], -1, 0),
        )
    by_lag = np.moveaxis(sums, 0, -1)
    keys = np.arange(-int(past.sum()), 0)
    heads = ("layer", "head")
    values = {
        "entropy": maps["entropy"].variable,
        "attention": ((*heads, "query", "key"), weights.astype(np.float32)),
        "lag": (heads, _largest(by_lag, lags)),
        # ``initial`` is for a context without any token of the past
        "lag_share": (heads, by_lag.max(axis=-1, initial=0.0)),
        "place": (heads, _largest(token_shares, keys)),
        "place_share": (heads, token_shares.max(axis=-1, initial=0.0)),
        "attention_forecast": (heads, mean[..., ahead].sum(axis=-1)),
        "attention_other": (heads, mean[..., ~past & ~ahead].sum(axis=-1)),
        "key_start": ("key", start[past]),
        "key_stop": ("key", stop[past]),
        "query_start": ("query", begin),
        "step_query": ("step", step_query),
    }
    return xr.Dataset(values, coords={"key": keys})


def _largest(shares: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the label of the largest share of each head; 0 if there are no labels."""
    if len(labels):
        result: np.ndarray = labels[shares.argmax(axis=-1)]
        return result
    return np.zeros(shares.shape[:-1], dtype=int)

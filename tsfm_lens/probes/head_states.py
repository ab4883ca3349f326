"""Data of the linked view of a model's heads: scores, attention, writes, spectra, ablations."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.points import Progress
from tsfm_lens.ablation.rollouts import forecast_variants
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.models.noise import marked_dataset
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import attention_patterns, forecast_queries, normalise, refuse_variates, shown_attention
from tsfm_lens.probes.attribution import decomposed, of_median
from tsfm_lens.probes.weights import head_spectra
from tsfm_lens.probes.zero_ablation import ablation_effects
from tsfm_lens.registry import probe

__all__ = ["head_states"]

_SOURCE = "tsfm-lens paper, sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK)"


_MAX_SERIES = 8  # of a report; each brings its attention and its forecasts
_MAX_BINS = 256  # stretches of the context that attention is told for


def _some_series(results: Any) -> tuple[Run]:
    """Select the first items of a report's run."""
    run = results.run
    return (run.select(np.flatnonzero(run.batch.group_index < _MAX_SERIES).tolist()),)


@probe(
    "explore",
    _some_series,
    words="`probes.head_states` on the first 8 series",
    each=lambda lens: {"explore": {}} if shown_attention(lens) else {},
)
def head_states(run: Run, *, kind: str | None = None, progress: Progress | None = None) -> xr.Dataset:
    """Collect the attention, writes and scores of each head of one kind, and the forecast without it.

    Args:
        run: the forecast to explain. Forecasts with and without a head use the same draws.
        kind: kind of attention of the output stack; its last kind over time if None.
        progress: called with the heads ablated so far and their number.

    Returns:
        Dataset of kind "explore" by ``series``, ``layer`` and ``head``: ``entropy`` in nats and ``normalised_entropy``
        (min-max over heads); ``write`` (…, step), the head's part of the forecast in data units, ``write_size``, its
        mean absolute value but at a token decoder's first step, ``write_share``, that over all components' sum;
        ``mean_shift`` (with ``_acts``) and ``spearman_distance`` as of :func:`tsfm_lens.probes.ablation_effects`;
        ``ablated_forecast`` (layer, head, series, quantile, step); ``attention`` (…, time), mean over forecast queries,
        a token's weight spread over its steps (at most ``attrs["token_steps"]``), ``attention_forecast`` and
        ``attention_other`` that on forecast tokens, and on special ones and padding; ``attention_row`` (…, row, bin),
        that of single queries on at most 256 stretches of ``bin_steps`` steps, which end at the forecast start;
        ``step_row`` (series, step) is the row that a step is read from. Without series: ``stable_rank`` (product,
        layer, head) and ``singular_value`` (…, mode). ``quantile_forecast`` (series, quantile, step) is
        the plain forecast; coordinate ``component`` names the heads. Attributes: ``other_kinds`` of attention in the
        stack, and the ``special`` tokens among the keys.

    Source:
        tsfm-lens paper: sections 2 to 5 (S3-HEAD, S3-ZA-H, S3-SPEAR, S3-HENT, S3-SRANK).

    Raises:
        InputError: several variates, a horizon longer than one pass, or attention between variates.
        UnknownNameError: the stack has no such kind of attention.

    Example:
        >>> dict(probes.head_states(run.shortened(2))["attention"].sizes)
        {'series': 1, 'layer': 3, 'head': 4, 'time': 128}
    """
    rows = refuse_variates(run, covariates=True)
    maps, views = _attention(run, rows, kind)
    attention = str(maps.attrs["attention"])
    data = marked_dataset(run).isel(series=rows).assign_coords(layer=maps["layer"], head=maps["head"])
    stack, heads = str(maps.attrs["stack"]), data["head"].values
    layers = [int(layer) for layer in data["layer"].values]
    names = [[str(Component(stack, layer, attention, int(head))) for head in heads] for layer in layers]
    where, shape = ("layer", "head"), (len(layers), len(heads))
    data = data.assign_coords(component=(where, names))
    data.update(views)
    data["normalised_entropy"] = data["entropy"].groupby("series").map(normalise)
    data.update(head_spectra(run.lens, kind=attention).sel(layer=data["layer"])[["singular_value", "stable_rank"]])
    # in data units
    parts = decomposed(run, "expected_value" if run.tokens_read else None).isel(decomposition=0)
    decomposition, attribution = str(parts["decomposition"].item()), of_median(parts["attribution"])
    order = {str(name): place for place, name in enumerate(attribution["component"].values)}
    each_head = [[order[name] for name in row] for row in names]
    writes = attribution.transpose("series", "component", "step").values[rows]
    sizes = np.abs(writes[..., run.first_step :]).mean(axis=-1)
    of_series = ("series", *where)
    data["write"], data["write_size"] = ((*of_series, "step"), writes[:, each_head]), (of_series, sizes[:, each_head])
    total = sizes.sum(axis=-1)
    data["write_share"] = data["write_size"] / xr.DataArray(np.where(total > 0, total, 1.0), dims="series")
    effects = ablation_effects(run, components=data["component"].values.ravel().tolist())
    for each in {"mean_shift", "spearman_distance"} & set(effects):
        data[each] = (of_series, effects[each].transpose("series", "component").values[rows].reshape(-1, *shape))
    data["mean_shift_acts"] = (where, effects["mean_shift_acts"].values.reshape(shape))
    # whole distributions, which single forwards of a token model do not give
    plain, axes = run.forecast, ("series", "quantile", "step")
    variants = [Variant(str(name), (Zero(str(name)),)) for name in data["component"].values.ravel()]
    options: dict[str, Any] = {"num_samples": run.num_samples, "seed": run.seed, "progress": progress}
    result = forecast_variants(run.lens, run.batch, run.horizon, variants, quantiles=plain.levels, **options)
    ablated = result.quantiles.reshape(*shape, *plain.quantiles.shape)[:, :, rows]
    data = data.assign_coords(quantile=list(plain.levels))
    data = data.assign(quantile_forecast=(axes, plain.quantiles[rows]), ablated_forecast=((*where, *axes), ablated))
    samples = plain.samples
    facts = {"stack": maps.attrs["stack"], "attention": attention, "decomposition": decomposition}
    facts |= {"samples": 0 if samples is None else samples.shape[1]}
    facts["special"] = " ".join(sorted({*maps["key_special"].values.tolist()} - {""}))
    stack_rows = run.lens.wiring.stack(stack)
    kinds = {row.kind for layer in range(stack_rows.n_layers) for row in stack_rows.attentions(layer)}
    facts["other_kinds"] = " ".join(sorted(kinds - {attention}))
    data.attrs = run.describe("explore", "One head at a time", _SOURCE, **facts)
    # whole forecasts have medians, whatever the head; the target of a write has an attribute of its own
    data.attrs["write_to"] = data.attrs.pop("statistic", "expected value" if run.tokens_read else "median")
    return data


def _attention(run: Run, rows: list[int], kind: str | None) -> tuple[xr.Dataset, xr.Dataset]:
    """Collect the attention of some series; the maps of the first one say what of."""
    maps = [attention_patterns(run.select([place]), kind=kind) for place in rows]
    width = run.dataset().sizes["time"]
    views = [xr.Dataset({"entropy": each["entropy"], **attention_over_steps(each, width)}) for each in maps]
    ids = xr.DataArray([run.batch.ids[row] for row in rows], dims="series", name="series")
    return maps[0], xr.concat(views, ids, data_vars="all")


def attention_over_steps(maps: xr.Dataset, width: int) -> dict[str, xr.DataArray]:
    """Distribute the attention of each head, and of single queries, over ``width`` context steps."""
    queries = forecast_queries(maps)
    rows = maps["pattern"].values[:, :, queries].astype(float)
    weights = rows.mean(axis=2)
    first, offset = int(maps["time"].values[0]), width - maps.sizes["time"]
    start, stop = maps["key_start"].values, maps["key_stop"].values
    ordinary = maps["key_special"].values == ""
    past = ordinary & (start < 0) & (stop > first)
    spread = np.zeros((len(start), width))
    for key in np.flatnonzero(past):
        # of a token that reaches beyond the series, the steps that show it
        low, high = (edge - first + offset for edge in (max(start[key], first), min(stop[key], 0)))
        spread[key, low:high] = 1 / (high - low)
    ahead = ordinary & (start >= 0)
    heads, most = ("layer", "head"), int((spread > 0).sum(axis=1).max(initial=0))
    n_steps = -(-width // _MAX_BINS)
    # stretches end at the forecast start; the first may be shorter
    binned = np.pad(spread, ((0, 0), (-width % n_steps, 0))).reshape(len(start), -1, n_steps).sum(axis=-1)
    last = np.searchsorted(maps["query_start"].values[queries], np.arange(maps.sizes["step"]), side="right") - 1
    return {
        "attention": xr.DataArray(weights @ spread, dims=(*heads, "time"), attrs={"token_steps": most}),
        "attention_forecast": xr.DataArray(weights[..., ahead].sum(axis=-1), dims=heads),
        "attention_other": xr.DataArray(weights[..., ~past & ~ahead].sum(axis=-1), dims=heads),
        "attention_row": xr.DataArray(
            (rows @ binned).astype(np.float32), dims=(*heads, "row", "bin"), attrs={"bin_steps": n_steps}
        ),
        "step_row": xr.DataArray(last.clip(0), dims="step"),
    }

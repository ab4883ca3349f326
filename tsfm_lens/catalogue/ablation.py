"""Ablation of components, one at a time and many at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import Compute, Options, Work, on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.standing import WORTH_A_WORD, Standing
from tsfm_lens.catalogue.tables import add_quantiles, steps_table
from tsfm_lens.catalogue.words import capital, count_of, listed, measured, num, signed, verb
from tsfm_lens.viz import ablation_forecasts, ablation_heatmap, recipe_forecasts
from tsfm_lens.viz.ablation import strongest
from tsfm_lens.viz.panels import means
from tsfm_lens.viz.select import array, forecast_series, names, statistic_of, unit_of
from tsfm_lens.viz.theme import percent

_MAX_SERIES = 2  # series with a figure of their own
_ROWS = 4  # series in one figure of recipes


def read_ablation(ds: xr.Dataset, metric: str) -> list[str]:
    """Describe the head and the MLP that matter most, if one leads, and how few heads carry the effect."""
    kinds = ds["kind"].values.astype(str)
    relative = metric.endswith("change")
    estimate = array(ds, f"{metric}_estimate", "component")
    heads = np.flatnonzero((ds["head"].values >= 0) & np.isfinite(estimate))
    mlps = np.flatnonzero((kinds == "mlp") & np.isfinite(estimate))
    groups = ((heads, "head"), (mlps, "MLP"))
    out = [_leading(ds, metric, group, noun) for group, noun in groups if len(group)]
    out_of = array(ds, f"{metric}_stands_out", "component")[heads].astype(bool)
    if len(heads):
        count = int(out_of.sum())
        large = int((out_of & (_share_of_range(ds)[heads] >= WORTH_A_WORD)).sum())
        suffix = f"; {'all' if large == count else large or 'none'} of them move the forecast by "
        suffix += f"{percent(WORTH_A_WORD)} of the range of its series or more"
        out.append(
            f"{count_of(count, len(heads), 'heads')} {verb(count, 'stand')} out of the noise{suffix * bool(count)}."
        )
    if len(heads) > 4 and not relative and out_of.any():
        order = np.sort(estimate[heads])[::-1]
        few = int(np.searchsorted(np.cumsum(order), 0.5 * order.sum())) + 1
        out.append(f"{few} of {len(heads)} heads {verb(few, 'make')} up half of the sum of all heads' effects.")
    out.append("Components are removed one at a time: those that can stand in for each other look unimportant.")
    return out


def _share_of_range(ds: xr.Dataset) -> np.ndarray:
    """Compute how far the forecast moves without each component, over the range of its series, (component,)."""
    values = np.concatenate(
        [array(ds, "context", "series", "time"), array(ds, "baseline_forecast", "series", "step")], 1
    )
    wide = np.nanmax(values, axis=1) - np.nanmin(values, axis=1)
    shift = array(ds, "mean_shift", "component", "series")
    return np.divide(shift, wide, out=np.zeros_like(shift), where=wide > 0).mean(axis=1)


def _leading(ds: xr.Dataset, metric: str, group: np.ndarray, noun: str) -> str:
    """Name the member of a group that leads it; say that none does otherwise."""
    relative = metric.endswith("change")
    word = {"spearman_distance": "Spearman distance", "mae_change": "MAE", "mase_change": "MASE"}.get(metric, metric)
    parts = {part: array(ds, f"{metric}_{part}", "component") for part in ("estimate", "low", "high", "leads")}
    scale, unit = (100.0, " %") if relative else (1.0, "")
    n = ds.sizes["series"]
    top = group[parts["leads"][group].astype(bool)]
    over = f" over {n} series" if n > 1 else ""
    mean = " on average" if n > 1 else ""
    if not len(top):
        largest = scale * float(np.nanmax(np.abs(parts["estimate"][group])))
        if not largest:
            stays = f"the {word} stays as it is" if relative else f"the forecast keeps its shape, at a {word} of 0"
            return f"Without any single {noun} {stays}."
        amount = f"up to {num(largest)}{unit}{mean}{over}"
        what = f"changes of the {word}," if relative else f"effects, a {word} of"
        return f"No {noun} leads: the largest {what} {amount}, cannot be told apart."
    at = int(top[0])
    value, low, high = (scale * float(parts[part][at]) for part in ("estimate", "low", "high"))
    # a rank correlation sees the order of the steps, and not how far they move
    does = "changes the order of the steps" if metric == "spearman_distance" else "moves the forecast"
    moves = f"{'raises' if value > 0 else 'lowers'} the {word}" if relative else does
    text = f"The {noun} whose removal {moves} most is {names(ds, 'component')[at]} ({'' if relative else word + ' '}"
    text += f"{(signed if relative else num)(value)}{unit}"
    if num(low) != num(high):
        text += f" on average, {num(low)} to {num(high)}{unit}{over}"
    return text + ")."


def read_ablation_forecasts(ds: xr.Dataset, series: int, components: list[str]) -> list[str]:
    """Describe how far the strongest ablation moves the forecast."""
    top = components[0]
    base = array(ds, "baseline_forecast", "step", series=series)
    row = names(ds, "component").index(top)
    after = array(ds, "forecast", "step", component=row, series=series)
    amount, span = measured(unit_of(ds, series)), float(np.ptp(base))
    distance = float(np.abs(after - base).mean())
    against = f", {100 * distance / span:.3g} % of the range it runs through" if span > 0 else ""
    return [
        f"Without {top} the {statistic_of(ds)} forecast of {names(ds, 'series')[series]} moves by "
        f"{amount(distance)} on average{against}; its range goes from {amount(span)} to {amount(float(np.ptp(after)))}."
    ]


def ablation_table(ds: xr.Dataset, metric: str) -> pd.DataFrame:
    """Tabulate the effect on every series and the mean, a row per component."""
    effect = array(ds, metric, "component", "series")
    table = pd.DataFrame({"component": names(ds, "component")})
    for coord in ("stack", "kind", "layer_index", "head"):
        table[coord] = ds[coord].values
    table["mean"] = means(effect)
    for i, name in enumerate(names(ds, "series")):
        table[f"{metric}: {name}"] = effect[:, i]
    return table


def ablated_forecast_table(ds: xr.Dataset, series: int, components: list[str]) -> pd.DataFrame:
    """Tabulate truth, unablated forecast and the forecast without each component, a row per step."""
    table = steps_table(ds, series)
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    table["unablated"] = array(ds, "baseline_forecast", "step", series=series)
    labels = names(ds, "component")
    for component in components:
        values = array(ds, "forecast", "step", component=labels.index(component), series=series)
        table[f"without {component}"] = values
    return table


def _ablation(ds: xr.Dataset) -> Iterator[Plate]:
    changes = [m for m in ("mase_change", "mae_change") if m in ds and np.isfinite(ds[m].values).any()]
    for metric in [m for m in ("spearman_distance",) if m in ds] + changes[:1]:
        fig = ablation_heatmap(ds, metric=metric)
        yield Plate(fig, ablation_table(ds, metric), read_ablation(ds, metric))
    if not {"forecast", "baseline_forecast", "spearman_distance"} <= set(ds.data_vars):
        return
    for i in forecast_series(ds, _MAX_SERIES):
        top = strongest(ds, i)
        if top:
            fig = ablation_forecasts(ds, components=top, series=i)
            words = read_ablation_forecasts(ds, i, top)
            yield Plate(fig, ablated_forecast_table(ds, i, top), words)


def _recipes(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(recipe_forecasts(ds, series=names(ds, "series")[:_ROWS]), _recipe_table(ds), read_recipes(ds))


def _recipe_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate quantiles, a row per recipe, series and step."""
    parts = []
    for place, recipe in enumerate(names(ds, "recipe")):
        for i in forecast_series(ds):
            part = steps_table(ds, i)
            part.insert(0, "recipe", recipe)
            add_quantiles(part, ds, array(ds, "quantile_forecast", "quantile", "step", recipe=place, series=i))
            parts.append(part)
    return pd.concat(parts, ignore_index=True)


def read_recipes(ds: xr.Dataset) -> list[str]:
    """Describe how much each recipe removes, and whether the forecast then differs by more than chance."""
    out = []
    distance = Standing(ds, "spearman_distance", "recipe")
    for place, recipe in enumerate(names(ds, "recipe")):
        if not str(ds["components"].values[place]):
            continue
        parts = [f"{percent(float(ds['heads_share'].values[place]))} of the heads"]
        if int(ds["n_mlps"].values[place]):
            parts.append(f"{int(ds['n_mlps'].values[place])} MLPs")
        how = "is" if distance.stands_out[place] else "does not stand out of the noise:"
        effect = f"the Spearman distance from the complete model's forecast {how} {distance.told(place)}"
        out.append(f"{capital(recipe)}: {listed(parts)} ablated; {effect}.")
    return out


def _sharp_and_diffuse(work: Work, options: Options) -> xr.Dataset:
    """Ablate a tenth of the heads: the sharpest, and the most diffuse."""
    from tsfm_lens.probes import diffuse_heads, sharp_heads

    entropy = work.result("head_entropy")
    count = max(1, entropy["entropy"].size // 10)
    recipes = {"sharp heads": sharp_heads(entropy, count), "diffuse heads": diffuse_heads(entropy, count)}
    return work.call("ablation_recipes", work.run, recipes, **options)


MEASUREMENTS = (
    Measurement(
        kind="ablation",
        theme="Causes",
        about="ablation of every head, MLP and layer",
        heading="Ablation",
        guide="Each attention head, MLP and layer is set to zero in turn, and the forecast is made again. What changes "
        "it most, it depends on most.",
        compute=on_all("ablation_effects"),
        plates=_ablation,
        figures=(
            Figure("ablation_heatmap", "What the forecast loses without a head, an MLP or a layer."),
            Figure("ablation_forecasts", "Forecasts without single components."),
        ),
        source="tsfm-lens, section 3",
        paper=("S3-F2", "S3-F8", "S3-F9"),
    ),
    Measurement(
        kind="recipes",
        theme="Causes",
        about="heavy ablations: many heads and MLPs at once, chosen by stable rank, entropy or at random",
        heading="Heavy ablation",
        guide="Many heads, and MLPs, are set to zero at once, and the forecast is made again. How well it holds shows "
        "how much of the model it needs.",
        compute=Compute(
            "ablation_recipes",
            "ablation_recipes without a tenth of the heads, the sharpest or the most diffuse by head_entropy",
            _sharp_and_diffuse,
        ),
        plates=_recipes,
        figures=(Figure("recipe_forecasts", "Forecasts without sharp or diffuse heads."),),
        helpers=("heads_by_stable_rank", "heads_at_1pp", "random_heads", "ablated_share"),
        source="tsfm-lens, sections 4 and 5",
        paper=("S3-F6", "S3-F13", "S3-F14", "S3-F15", "S3-F20"),
    ),
)

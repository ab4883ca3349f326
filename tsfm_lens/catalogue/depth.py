"""Forecasts read after each layer, and the gain of each layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.catalogue.computing import Work, of_results, on_all, on_first
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.needs import TOKENS
from tsfm_lens.catalogue.standing import Standing
from tsfm_lens.catalogue.tables import add_quantiles, frame, steps_table
from tsfm_lens.catalogue.words import capital, layers, listed, measured, num
from tsfm_lens.viz import layer_entropy, layer_gain, lens_forecast, lens_logit_map, logit_map
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, forecast_series, median_position, names, statistic_of, unit_of

_LENSES, _MAPS = 6, 3  # series with a figure of their own


def read_entropy(ds: xr.Dataset) -> list[str]:
    """Describe where along the depth the model becomes sure."""
    from tsfm_lens.stats import leader

    entropy = array(ds, "entropy", "layer", "series", "step").mean(axis=-1)
    middle, words = medians(entropy), layers(ds)
    n = entropy.shape[1]
    over = f", median over {n} series" if n > 1 else ""
    out = [
        f"The entropy of the next value's distribution goes from {num(middle[0])} nats at {words[0]} to "
        f"{num(middle[-1])} nats at {words[-1]}{over}: as many equally likely bins as {num(np.exp(middle[0]))} "
        f"at first and {num(np.exp(middle[-1]))} at the end."
    ]
    if len(middle) < 2:
        return out
    change = np.diff(entropy, axis=0)
    best = leader(-change)
    if best is not None and change[best].mean() < 0:
        out.append(f"{capital(words[best + 1])} lowers it most, by {num(-change[best].mean())} nats on average.")
    else:
        out.append("No layer lowers it by more than every other on these series.")
    rising = [words[i + 1] for i in range(len(change)) if (change[i] > 0).all()]
    if rising:
        every = " on every series" if n > 1 else ""
        out.append(f"It rises in {listed(rising)}{every}: there the readable forecast becomes less certain.")
    return out


def read_logit_map(ds: xr.Dataset, series: int) -> list[str]:
    """State from which layer on the most likely value is the one the model ends with."""
    probability = array(ds, "probability", "layer", "step", "bin", series=series)
    value = array(ds, "value", "bin", series=series)
    words, amount = layers(ds), measured(unit_of(ds, series))
    mode = value[probability.argmax(axis=-1)]
    width = float(np.median(np.diff(np.sort(value)))) if len(value) > 1 else 0.0
    agree = (np.abs(mode - mode[-1]) <= 1.5 * width).mean(axis=-1)
    # the first layer from which on all layers agree at half of the steps and more
    first = len(agree) - int(np.argmin(np.append(agree[::-1] >= 0.5, False)))
    out = [
        f"For {names(ds, 'series')[series]} the most likely value of {words[0]} is that of the last layer, give or "
        f"take one bin, at {100 * agree[0]:.0f} % of the steps"
        + (
            f"; from {words[first]} on it is at half of them and more."
            if first < len(agree) - 1
            else "; only the last layer settles it."
        )
    ]
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(mode.shape[1], np.nan)
    if np.isfinite(truth).all():
        # one step at which an early layer is far off would decide the mean
        error = np.median(np.abs(mode - truth), axis=-1)
        out.append(
            f"Its distance from the truth, median over steps, is {amount(error[0])} at {words[0]} and "
            f"{amount(error[-1])} at {words[-1]}; the least is {amount(error.min())}, at "
            f"{words[int(error.argmin())]}."
        )
    return out


def read_lens_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """State how far each layer's forecast is from the last layer's, and from the truth where known."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "layer", "quantile", "step", series=series)
    median, words = values[:, median_position(levels)], layers(ds)
    amount = measured(unit_of(ds, series))
    away = np.abs(median - median[-1]).mean(axis=-1)
    out = [
        f"Read from {words[0]}, the {statistic_of(ds)} forecast of {names(ds, 'series')[series]} is "
        f"{amount(away[0])} away from the final one, mean over steps"
        + (f"; before the last layer it is {amount(away[-2])} away." if len(away) > 2 else ".")
    ]
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(median.shape[1], np.nan)
    finite = np.isfinite(truth)
    if finite.any():
        error = np.abs(median - truth)[:, finite].mean(axis=-1)
        best = int(error.argmin())
        out.append(
            f"Against the truth {words[best]} is closest ({amount(error[best])})"
            + ("." if best == len(error) - 1 else f"; the last layer misses by {amount(error[-1])}.")
        )
    return out


def read_gain(ds: xr.Dataset) -> list[str]:
    """Name the layers that help and those that hurt beyond the noise, for every metric."""
    words = layers(ds)
    out = []
    for place, metric in enumerate(names(ds, "metric")):
        gain = Standing(ds, "gain", "layer", metric=place)
        if not np.isfinite(gain.estimate).any():
            continue
        lowering, raising = (gain.named(len(words), side) for side in (gain.estimate < 0, gain.estimate > 0))
        parts = []
        first = gain.leader(gain.estimate < 0)
        if first is not None:
            parts.append(f"{words[first]} lowers the error most, by {gain.told(first, _write_drop)}")
        elif lowering:
            parts.append(f"{listed([words[i] for i in sorted(lowering)])} {_verb(lowering, 'lower')} the error")
        if raising:
            what = f"{_verb(raising, 'raise')} {'it' if parts else 'the error'}"
            parts.append(f"{listed([words[i] for i in sorted(raising)])} {what}")
        out.append(f"{metric}: {'; '.join(parts) or 'no layer changes the error by more than the noise'}.")
    return out


def _write_drop(percent: float) -> str:
    return f"{num(-percent)} %"


def _verb(subjects: list[int], verb: str) -> str:
    return f"{verb}s" if len(subjects) == 1 else verb


def lens_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate quantiles, a row per layer and step."""
    parts = []
    for i, layer in enumerate(names(ds, "layer")):
        part = steps_table(ds, series)
        part.insert(0, "layer", layer)
        add_quantiles(part, ds, array(ds, "quantile_forecast", "quantile", "step", series=series, layer=i))
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def map_table(fig: go.Figure, ds: xr.Dataset, series: int, least: float = 1e-3) -> pd.DataFrame:
    """Tabulate the drawn cells of the logit map that hold at least ``least`` probability."""
    parts = []
    for trace in fig.data:
        if trace.type != "heatmap":
            continue
        mass, edges = np.asarray(trace.customdata, dtype=float), np.asarray(trace.y, dtype=float)
        row, column = np.nonzero(mass >= least)
        group = int(trace.meta["steps"])
        parts.append(
            pd.DataFrame(
                {
                    "layer": trace.name,
                    "step": np.array(names(ds, "step"))[column * group],
                    **({"steps": group} if group > 1 else {}),
                    "value_from": edges[row],
                    "value_to": edges[row + 1],
                    "probability": mass[row, column],
                }
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table["unit"] = unit_of(ds, series)
    return table


def entropy_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the measures, mean over steps, a row per layer and series."""
    measures = [m for m in ("entropy", "n_peaks", "effective_vocabulary") if m in ds]
    layers, ids = names(ds, "layer"), names(ds, "series")
    table = pd.DataFrame({"layer": np.repeat(layers, len(ids)), "series": np.tile(ids, len(layers))})
    for measure in measures:
        table[measure] = array(ds, measure, "layer", "series", "step").mean(axis=-1).ravel()
    return table


def gain_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate error and gain in percent, a row per metric, layer and series."""
    metrics, layers, ids = names(ds, "metric"), names(ds, "layer"), names(ds, "series")
    index = pd.MultiIndex.from_product([metrics, layers, ids], names=["metric", "layer", "series"])
    table = index.to_frame(index=False)
    if "error" in ds:
        table["error"] = array(ds, "error", "metric", "layer", "series").ravel()
    table["gain_percent"] = array(ds, "gain", "metric", "layer", "series").ravel()
    return table


def _lens(ds: xr.Dataset) -> Iterator[Plate]:
    if "probability" not in ds:
        for i in forecast_series(ds, _LENSES):
            yield Plate(lens_forecast(ds, series=i), lens_table(ds, i), read_lens_forecast(ds, i))
        return
    if "entropy" in ds:
        yield Plate(layer_entropy(ds), entropy_table(ds), read_entropy(ds))
    for i in forecast_series(ds, _MAPS):
        fig = logit_map(ds, series=i)
        yield Plate(fig, map_table(fig, ds, i), read_logit_map(ds, i))


def _gain(ds: xr.Dataset) -> Iterator[Plate]:
    # where every layer's forecast is exact there is no gain to show
    if np.isfinite(ds["gain"].values).any():
        yield Plate(layer_gain(ds), gain_table(ds), read_gain(ds))


def _lens_logits(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(lens_logit_map(ds), _largest_logits(ds), read_lens_logits(ds))


def _largest_logits(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the value of the largest logit, and the logit, a row per layer and step."""
    best = ds["logit"].isel(series=0).argmax("bin")
    value = ds["value"].isel(series=0, bin=best)
    largest = xr.Dataset(
        {"value": value.drop_vars("bin", errors="ignore"), "logit": ds["logit"].isel(series=0).max("bin")}
    )
    return frame(largest, "value", "logit")


def read_lens_logits(ds: xr.Dataset) -> list[str]:
    """Describe how the largest logits grow along the depth."""
    logit, words = array(ds, "logit", "layer", "step", "bin", series=0), layers(ds)
    lead = (logit.max(-1) - np.median(logit, axis=-1)).mean(-1)
    return [
        f"The largest logit of a step is {num(lead[0])} above the median of all values' logits at {words[0]} and "
        f"{num(lead[-1])} at {words[-1]}, mean over steps."
    ]


def _reference(work: Work) -> dict[str, str]:
    """Choose the reference of the gain: the model's own forecast where there is no truth."""
    truth = work.run.truth
    return {"reference": "model" if truth is None or not np.isfinite(truth).any() else "truth"}


MEASUREMENTS = (
    Measurement(
        kind="logit_lens",
        theme="Activations",
        about="what each layer would forecast",
        heading="Logit lens",
        guide="The model's own output head is applied to its residual stream after every layer, as if the model ended "
        "there. This shows where along the depth the forecast takes shape.",
        compute=on_all("logit_lens"),
        plates=_lens,
        figures=(
            Figure(
                "logit_map",
                "Probabilities of values, read after each layer.",
                needs=TOKENS,
                instead="lens_forecast",
            ),
            Figure("lens_forecast", "The forecast that each layer holds."),
            Figure(
                "layer_entropy",
                "Uncertainty of the next value after each layer.",
                needs=TOKENS,
                instead="lens_forecast",
            ),
        ),
        helpers=("bin_quantiles", "count_peaks"),
        source="nostalgebraist 2020; tsfm-lens, section 2",
        paper=("S3-F1D",),
    ),
    Measurement(
        kind="lens_logits",
        theme="Activations",
        about="logits of every value after each layer, and of single components (`lens_logits.component_logits`)",
        heading="Lens logits",
        guide="The logits that the output head gives to every value when it reads the residual stream after each "
        "layer.",
        compute=on_first("lens_logits"),
        plates=_lens_logits,
        figures=(Figure("lens_logit_map", "Logits of values, read after each layer."),),
        source="tsfm-lens, section 2 and figure 1C",
        needs=TOKENS,
    ),
    Measurement(
        kind="layer_gain",
        theme="Activations",
        about="what each layer gains",
        heading="Gain of each layer",
        guide="The error of the forecast read after a layer, compared with that read one layer before. Negative is "
        "better.",
        compute=of_results("layer_gain", "logit_lens", options=_reference),
        plates=_gain,
        figures=(Figure("layer_gain", "What each layer adds to the accuracy."),),
        source="tsfm-lens, appendix F",
        paper=("S3-F22",),
    ),
)

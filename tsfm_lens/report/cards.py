"""Cards of a report's first screen: what the chapters say of one series.

Read :func:`make_cards` and the table ``_CARDS`` first: each card is made by one
function, from the result of one measurement, and may be empty where the result has
nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.verdict import verdict
from tsfm_lens.viz.contributions import ARROWS, BOTH_WAYS
from tsfm_lens.viz.findings import WORTH_A_WORD, find_estimate
from tsfm_lens.viz.forecast import naive_forecast
from tsfm_lens.viz.head_states import (
    component_name,
    describe_attention,
    effects_of_heads,
    head_name,
)
from tsfm_lens.viz.input_attribution import group_name, moved, ranked
from tsfm_lens.viz.panels import name_segments, name_unit
from tsfm_lens.viz.select import (
    array,
    find_unit,
    flat_series,
    forecast_series,
    median_position,
    name_statistic,
    names,
)
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import measured, signed

MAX_SERIES = 24  # tabs
_MAX_BARS = 4
# what a token decoder's error is of, as its first step reads no value
_FROM_SECOND = " from the second step on"

Card = dict[str, Any]
"""What a card says of one series.

``big`` is its headline, which ``note`` explains. ``bars`` and points of ``line`` are
(label, value in words, share of the largest).
"""


def make_cards(
    results: Mapping[str, Any], anchors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the cards for which there are results.

    Each has a title, the anchor of its chapter, and what it says of each series.
    """
    rows = []
    # id of the series if the page explains one forecast: its cards are of it alone
    explained = next(
        (
            str(ds.attrs["target"])
            for ds in results.values()
            if _kind(ds) == "input_attribution"
        ),
        "",
    )
    for title, kind, make in _CARDS:
        name = next((name for name, ds in results.items() if _kind(ds) == kind), None)
        if name is None:
            continue
        ds = results[name]
        ids = names(ds, "series")
        if explained in ids:
            positions = [ids.index(explained)]
        else:
            positions = forecast_series(ds, MAX_SERIES)
        cards = {ids[position]: make(ds, position) for position in positions}
        cards = {series: card for series, card in cards.items() if card}
        rows.append({"title": title, "anchor": anchors[name], "cards": cards})
    return [row for row in rows if row["cards"]]


def _kind(ds: Any) -> str:
    if isinstance(ds, xr.Dataset):
        return str(ds.attrs.get("kind"))
    return ""


def _accuracy(ds: xr.Dataset, series: int) -> Card:
    """Return the card on the median's error, beside the last season repeated.

    The note counts the steps at which the truth lies in the widest band. Without a
    truth there is no such card.
    """
    truth = _find_truth(ds, series)
    finite = np.isfinite(truth)
    if not finite.any():
        return {}
    unit = find_unit(ds, series)
    low, high, coverage = _widest_band(ds, series)
    levels = np.asarray(ds["quantile"].values, dtype=float)
    median = array(
        ds, "quantile_forecast", "step", series=series, quantile=median_position(levels)
    )
    error = float(np.abs(median - truth)[finite].mean())
    inside = int(((truth >= low) & (truth <= high))[finite].sum())
    bars = [("this forecast", error)]
    note = "mean absolute error"
    naive_name, naive = naive_forecast(ds, series)
    # without an observed value there is no naive forecast
    if len(naive):
        naive_error = float(np.abs(naive - truth)[finite].mean())
        bars.append((naive_name, naive_error))
        word = "larger" if error > naive_error else "no larger"
        note = f"{note}, {word} than with the {naive_name.split(' (')[0]}"
    return {
        "big": measured(unit)(error),
        "note": f"{note}; {inside} of {int(finite.sum())} steps lie in the {coverage}"
        " band",
        "bars": _bars(bars),
    }


def _uncertainty(ds: xr.Dataset, series: int) -> Card:
    """State the width of the widest band of a forecast whose truth is not known yet."""
    if np.isfinite(_find_truth(ds, series)).any():
        return {}
    low, high, coverage = _widest_band(ds, series)
    width = measured(find_unit(ds, series))(float((high - low).mean()))
    return {
        "big": f"band of {width}",
        "note": f"mean width of the {coverage} band; the truth is not known yet",
    }


def _find_truth(ds: xr.Dataset, series: int) -> np.ndarray:
    """Return the true values of a series, (step,), NaN where they are not known."""
    if "truth" in ds:
        return array(ds, "truth", "step", series=series)
    return np.full(ds.sizes["step"], np.nan)


def _widest_band(ds: xr.Dataset, series: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the widest band that a model gives, (step,), and its nominal coverage."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    coverage = f"{100 * (levels.max() - levels.min()):.3g} %"
    return values[levels.argmin()], values[levels.argmax()], coverage


def _forming(ds: xr.Dataset, series: int) -> Card:
    """Return the card on the error of the forecast that is read after each layer.

    Without a truth there is no such card: what each layer adds then has no measure but
    the last layer itself.
    """
    # a flat series has no forecast that forms, only rounding
    if flat_series(ds)[series] or not {"truth", "quantile_forecast"} <= set(ds):
        return {}
    layers = [layer_name(label) for label in names(ds, "layer")]
    middle = median_position(np.asarray(ds["quantile"].values, dtype=float))
    medians = array(
        ds, "quantile_forecast", "layer", "step", series=series, quantile=middle
    )
    truth = array(ds, "truth", "step", series=series)
    # a token decoder's first step reads no value
    first = int(ds.attrs.get("first_step", 0))
    gaps = np.abs(medians - truth)[:, first:]
    finite = np.isfinite(truth)[first:]
    if len(layers) < 2 or not finite.any():
        return {}
    errors = gaps[:, finite].mean(axis=-1)
    write = measured(find_unit(ds, series))
    # a difference is that of a layer from the one before it
    changes = np.diff(errors)
    best = int(np.argmin(changes))
    big = "in no layer"
    meaning = "no layer lowers it"
    if changes[best] < 0:
        big = f"mostly in {layers[best + 1]}"
        meaning = (
            f"{layers[best + 1]} lowers it most, from {write(errors[best])} to"
            f" {write(errors[best + 1])}"
        )
    note = (
        "mean absolute error of the median that is read after each"
        f" layer{_FROM_SECOND if first else ''}; {meaning}"
    )
    points = [
        # a curve that is 0 everywhere stays so
        (label, write(error), error / (errors.max() or 1.0))
        for label, error in zip(layers, errors.tolist(), strict=True)
    ]
    return {"big": big, "note": note, "line": points}


def _needs(ds: xr.Dataset, series: int) -> Card:
    """Return the card on how far the forecast moves without heads and MLPs.

    Those that are significant over series are marked.
    """
    if flat_series(ds)[series]:
        return {}
    # a whole layer holds several of the others, and would lead them
    parts = [index for index, kind in enumerate(ds["kind"].values) if kind != "layer"]
    effect = find_estimate(ds, "mean_shift", "component")
    values = array(ds, "mean_shift", "component", series=series)
    unit = find_unit(ds, series)
    order = sorted(parts, key=lambda index: -values[index])[:_MAX_BARS]
    # so written that NaN makes no card either
    if not order or not values[order[0]] > 0:
        return {}

    def mark(index: int) -> str:
        if effect is None:
            return ""
        suffix = ""
        if effect.significant[index]:
            suffix += " ★"
        if effect.learned is not None and effect.learned[index]:
            suffix += " ◆"
        return suffix

    labels = {index: component_name(ds, index) for index in order}
    bars = _bars([(labels[index] + mark(index), values[index]) for index in order])
    marks = {
        " ★": "★ significant over series",
        " ◆": "◆ passes the test beside untrained twins",
    }
    legend = [
        text for sign, text in marks.items() if any(sign in label for label, *_ in bars)
    ]
    tested = "; ".join(legend) or "none is significant over series"
    note = (
        f"size: mean change of the forecast without it{unit and f' ({unit})'};"
        f" {tested}{_describe_improvement(ds, series, order[0])}"
    )
    return {"big": labels[order[0]], "note": note, "bars": bars}


def _describe_improvement(ds: xr.Dataset, series: int, index: int) -> str:
    """Say that a series' forecast is better without a component; "" if it is not."""
    if "mae_change" not in ds:
        return ""
    change = array(ds, "mae_change", "component", series=series)[index]
    # so written that a change that is not a number counts as none
    if not change < -WORTH_A_WORD:
        return ""
    write = measured(find_unit(ds, series))
    before = write(float(array(ds, "mae_baseline", series=series)))
    after = write(float(array(ds, "mae", "component", series=series)[index]))
    # the result has the first step apart where the error leaves it out
    steps = _FROM_SECOND if "first_step_shift" in ds else ""
    return (
        f"; without it the error falls from {before} to {after}"
        f" ({name_statistic(ds)}{steps})"
    )


def _reads(ds: xr.Dataset, series: int) -> Card:
    """Return the card on where the heads with the largest effects attend most.

    The headline is of the first that reads a part of the series.
    """
    effects = effects_of_heads(ds, "mean_shift").isel(series=series)
    effect = effects.transpose("layer", "head").values
    noise_floor = float(ds["mean_shift_floor"].values[series])
    bars = []
    targets = []
    without = []
    # stable: of equal effects the one that comes first in the model
    for flat in np.argsort(-effect.ravel(), kind="stable")[:_MAX_BARS]:
        layer, head = (int(index) for index in np.unravel_index(flat, effect.shape))
        # effects are sorted by size, so all that follow are within the noise, too
        if effect[layer, head] <= noise_floor:
            break
        reading = describe_attention(ds, series, layer, head)
        if reading.reads:
            targets.append(reading.words)
        else:
            without.append(reading.words)
        bars.append((f"{head_name(ds, layer, head)}: {reading.words}", reading.most))
    if not bars:
        return {}
    note = (
        "heads of the largest effects, largest first; where each attends most, and its"
        " attention there"
    )
    return {
        # a head that reads the series says more than one on other tokens
        "big": [*targets, *without][0],
        "note": f"{note} (mean over steps)",
        "bars": _bars(bars, percent),
    }


def _bars(
    entries: list[tuple[str, float]], write: Callable[[float], str] = number
) -> list[tuple[str, str, float]]:
    """Make bars (label, value, share of the largest)."""
    largest = max(abs(value) for _, value in entries) or 1.0
    return [(label, write(value), abs(value) / largest) for label, value in entries]


def _moving(ds: xr.Dataset, _: int) -> Card:
    """Rank stretches of the past and covariates by how far they move the median."""
    steps = array(
        ds,
        "attribution",
        "segment",
        "step",
        quantile=median_position(ds["quantile"].values),
    )
    unit = name_unit(ds)
    labels = names(ds, "segment")
    text = name_segments(ds)
    titles = []
    bars = []
    for group in ranked(ds, steps)[:_MAX_BARS]:
        # a bar has no room to say that a covariate's segments are taken together
        title = group_name(labels, group, text).removesuffix(" in total")
        # over the segments of the group, whose attributions add up, (step,)
        size, way = moved(steps[group].sum(0))
        arrow = ARROWS.get(way, ARROWS[BOTH_WAYS])
        titles.append(title)
        bars.append((f"{title} {arrow}", size))
    return {
        "big": titles[0],
        "note": f"mean size of the effect on a step ({unit}); ↑ raises, ↓ lowers the"
        " forecast, ↕ raises some steps and lowers others",
        "bars": _bars(bars),
    }


def _trust(ds: xr.Dataset, _: int) -> Card:
    """Return the card on the verdict of all faithfulness tests of the page.

    The note is of the test that decides.
    """
    # the page's verdict is of all its tests, this result has one of them
    test_verdict, reasons = verdict(ds)
    word = str(ds.attrs.get("verdict", test_verdict))
    note = str(ds.attrs.get("reason", reasons[0]))
    if word == "fails":
        note += " Try another reference."
    return {"big": f"the explanation {word}", "note": note}


def _trust_routes(ds: xr.Dataset, _: int) -> Card:
    """Return the card on the verdict where routes were tested and no input was."""
    if ds.attrs.get("masked", 1):
        return {}
    return {
        "big": f"only routes were tested: the explanation {ds.attrs['verdict']}",
        "note": f"{ds.attrs['reason']} No input was masked, so that the effects of the"
        " inputs are not tested.",
    }


def _worth(ds: xr.Dataset, _: int) -> Card:
    """Return the card on how far shuffled covariates raise the error.

    The rise is over all series. Without a truth there is no such card.
    """
    if "worth_size" not in ds:
        return {}
    return _ranked(
        ds,
        "worth_size",
        signed,
        "rise of the error with its values in random order; whether it helps, the error"
        " without it says",
    )


def _shuffling(ds: xr.Dataset, _: int) -> Card:
    """Return the card on how far shuffled covariates move the forecast.

    This card is made where no truth says what the covariates are worth.
    """
    if "worth_size" in ds:
        return {}
    return _ranked(
        ds,
        "moved_size",
        number,
        "mean size of the forecast's change with its values in random order",
    )


def _ranked(
    ds: xr.Dataset, name: str, write: Callable[[float], str], description: str
) -> Card:
    """Rank covariates by a statistic, (covariate, way), of shuffling their values."""
    shuffled = names(ds, "way").index("shuffled")
    values = array(ds, name, "covariate", "way")[:, shuffled]
    # a covariate without a value comes last
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf))[:_MAX_BARS].tolist()
    labels = names(ds, "covariate")
    n_series = len(forecast_series(ds))
    pooling = ""
    if n_series > 1:
        pooling = f"; median over {n_series} series"
    bars = _bars(
        [(labels[index], float(values[index])) for index in order],
        lambda value: f"{write(value)} × naive error",
    )
    note = f"{description}, in multiples of the seasonal-naive error{pooling}"
    return {"big": labels[order[0]], "note": note, "bars": bars}


# in the order of the page: what explains one forecast first, then all others
_CARDS: tuple[tuple[str, str, Callable[[xr.Dataset, int], Card]], ...] = (
    ("What moved it", "input_attribution", _moving),
    ("Can this explanation be trusted", "deletion_curves", _trust),
    ("Can this explanation be trusted", "route_faithfulness", _trust_routes),
    ("What a covariate is worth", "covariate_use", _worth),
    ("How much each covariate moves the forecast", "covariate_use", _shuffling),
    ("Accuracy of the forecast", "forecast", _accuracy),
    ("Uncertainty of the forecast", "forecast", _uncertainty),
    ("Where the error falls", "logit_lens", _forming),
    ("What it needs", "ablation_effects", _needs),
    ("What it reads", "head_states", _reads),
)

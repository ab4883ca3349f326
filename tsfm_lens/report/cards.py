"""Cards of a report's first screen: what the chapters say of one series, in four small
drawings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.verdict import verdict
from tsfm_lens.viz.findings import WORTH_A_WORD, finding
from tsfm_lens.viz.forecast import naive_forecast
from tsfm_lens.viz.head_states import describe_attention, effects_of_heads, head_name
from tsfm_lens.viz.input_attribution import group_name, moved, ranked
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import (
    array,
    find_unit,
    flat_series,
    forecast_series,
    layer_name,
    median_position,
    names,
)
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import measured, signed

MAX_SERIES = 24  # tabs
_MAX_BARS = 4

Card = dict[str, Any]
"""What a card says of one series: ``big``, ``note``, ``bars`` (label, value, share of
the largest), ``line``.
"""


def make_cards(
    results: Mapping[str, Any], anchors: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Make the cards that the results allow, each with its title, the chapter it is of,
    and a card per series.
    """
    rows = []
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
        rows.append(
            {
                "title": title,
                "anchor": anchors[name],
                "cards": {key: one for key, one in cards.items() if one},
            }
        )
    return [card for card in rows if card["cards"]]


def _kind(ds: Any) -> str:
    if isinstance(ds, xr.Dataset):
        return str(ds.attrs.get("kind"))
    return ""


def _accuracy(ds: xr.Dataset, series: int) -> Card:
    """Compare the median with the truth and with the last season repeated, and count
    steps inside the band.
    """
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    unit = find_unit(ds, series)
    low = values[levels.argmin()]
    high = values[levels.argmax()]
    share = f"{100 * (levels.max() - levels.min()):.3g} %"
    width = measured(unit)(float((high - low).mean()))
    if "truth" in ds:
        truth = array(ds, "truth", "step", series=series)
    else:
        truth = np.full(len(low), np.nan)
    finite = np.isfinite(truth)
    if not finite.any():
        return {
            "big": f"band of {width}",
            "note": f"mean width of the {share} band; the truth is not known yet",
        }
    error = float(np.abs(values[median_position(levels)] - truth)[finite].mean())
    inside = int(((truth >= low) & (truth <= high))[finite].sum())
    bars = [("this forecast", error)]
    note = f"{inside} of {int(finite.sum())} steps lie in the {share} band"
    label, repeated = naive_forecast(ds, series)
    if len(repeated):
        bars.append((label, float(np.abs(repeated - truth)[finite].mean())))
    return {
        "big": measured(unit)(error),
        "note": f"mean absolute error; {note}",
        "bars": _bars(bars),
    }


def _forming(ds: xr.Dataset, series: int) -> Card:
    """Follow the entropy of the lens forecast over layers, or its distance from the
    final one where it has none.
    """
    if flat_series(ds)[series]:
        return {}
    layers = [layer_name(label) for label in names(ds, "layer")]
    if "entropy" in ds:
        values = array(ds, "entropy", "layer", "step", series=series).mean(axis=-1)
        what = "entropy"
        unit = "nats"
    else:
        middle = median_position(np.asarray(ds["quantile"].values, dtype=float))
        medians = array(
            ds, "quantile_forecast", "layer", "step", series=series, quantile=middle
        )
        values = np.abs(medians - medians[-1]).mean(axis=-1)
        what = "distance from the final forecast"
        unit = find_unit(ds, series) or "data units"
    if len(values) < 2:
        return {}
    falls = int(np.argmin(np.diff(values))) + 1
    sinks = values[-1] < values[0]
    verdict = "it ends no lower than in the embedding, so it names no layer"
    if sinks:
        verdict = "it falls most there"
    note = f"{what} of the lens forecast after each layer, mean over steps; {verdict}"
    points = [
        (label, measured(unit)(value), value / (values.max() or 1.0))
        for label, value in zip(layers, values.tolist(), strict=True)
    ]
    return {
        "big": f"mostly in {layers[falls]}" if sinks else f"not told by {what}",
        "note": note,
        "line": points,
    }


def _needs(ds: xr.Dataset, series: int) -> Card:
    """Rank heads and MLPs by how far the forecast moves without them, marked where
    significant over series.
    """
    if flat_series(ds)[series]:
        return {}
    parts = [place for place, kind in enumerate(ds["kind"].values) if kind != "layer"]
    labels = names(ds, "component")
    effect = finding(ds, "mean_shift", "component")
    values = array(ds, "mean_shift", "component", series=series)
    unit = find_unit(ds, series) or "data units"
    order = sorted(parts, key=lambda place: -values[place])[:_MAX_BARS]
    if not order or not values[order[0]] > 0:
        return {}

    def mark(place: int) -> str:
        if effect is None:
            return ""
        learned = effect.learned is not None and bool(effect.learned[place])
        return " ★" * bool(effect.significant[place]) + " ◆" * learned

    bars = _bars([(labels[place] + mark(place), values[place]) for place in order])
    marks = {
        " ★": "★ significant over series",
        " ◆": "◆ passes the test beside untrained twins",
    }
    legend = [
        text for sign, text in marks.items() if any(sign in label for label, *_ in bars)
    ]
    tested = "; ".join(legend) or "none is significant over series"
    note = (
        f"size: mean change of the forecast without it ({unit});"
        f" {tested}{_describe_improvement(ds, series, order[0])}"
    )
    return {"big": labels[order[0]], "note": note, "bars": bars}


def _describe_improvement(ds: xr.Dataset, series: int, place: int) -> str:
    """Say that the forecast of a series is better without a component, where it is."""
    if (
        "mae_change" not in ds
        or not array(ds, "mae_change", "component", series=series)[place]
        < -WORTH_A_WORD
    ):
        return ""
    amount = measured(find_unit(ds, series))
    before = array(ds, "mae_baseline", series=series)
    after = array(ds, "mae", "component", series=series)[place]
    return (
        f"; without it the error falls from {amount(float(before))} to"
        f" {amount(float(after))}"
    )


def _reads(ds: xr.Dataset, series: int) -> Card:
    """Say where the heads with the largest effects look most, the one with the largest
    first.
    """
    effect = (
        effects_of_heads(ds, "mean_shift")
        .isel(series=series)
        .transpose("layer", "head")
        .values
    )
    floor = float(ds["mean_shift_floor"].values[series])
    bars = []
    positions = []
    for flat in np.argsort(-effect.ravel(), kind="stable")[:_MAX_BARS]:
        layer, head = (int(item) for item in np.unravel_index(flat, effect.shape))
        if effect[layer, head] <= floor:
            break
        reading = describe_attention(ds, series, layer, head)
        positions.append(reading.words)
        bars.append((f"{head_name(ds, layer, head)}: {reading.words}", reading.most))
    if not bars:
        return {}
    note = (
        "the heads with the largest effects, largest first; where each looks most, and"
        " its attention there"
    )
    return {
        "big": positions[0],
        "note": f"{note} (mean over steps)",
        "bars": _bars(bars, percent),
    }


def _bars(
    entries: list[tuple[str, float]], write: Callable[[float], str] = number
) -> list[tuple[str, str, float]]:
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
    unit = find_unit(ds) or "data units"
    labels = names(ds, "segment")
    text = segment_words(ds)
    groups = ranked(ds, steps)[:_MAX_BARS]
    effects_of = [moved(steps[group].sum(0)) for group in groups]
    called = [
        group_name(labels, group, text).removesuffix(" in total") for group in groups
    ]
    arrows = [{"up": "↑", "down": "↓"}.get(way, "↕") for _, way in effects_of]
    bars = _bars(
        [
            (f"{name} {arrow}", size)
            for name, arrow, (size, _) in zip(called, arrows, effects_of, strict=True)
        ]
    )
    return {
        "big": called[0],
        "note": f"mean change of a step ({unit}); ↑ up, ↓ down, ↕ both",
        "bars": bars,
    }


def _trust(ds: xr.Dataset, _: int) -> Card:
    """State the verdict of all faithfulness tests of the page, and the test that
    decides.
    """
    own, reasons = verdict(ds)
    word = str(ds.attrs.get("verdict", own))
    note = str(ds.attrs.get("reason", reasons[0])) + " Try another reference." * (
        word == "fails"
    )
    return {"big": f"the explanation {word}", "note": note}


def _worth(ds: xr.Dataset, _: int) -> Card:
    """Rank covariates by the accuracy that is lost without them, over all series;
    nothing without a truth.
    """
    if "worth_size" not in ds:
        return {}
    return _ranked(
        ds,
        "worth_size",
        signed,
        "rise of the error with it in random order; above 0: it helps",
    )


def _shuffling(ds: xr.Dataset, _: int) -> Card:
    """Rank covariates by how far forecasts move without their order, where no truth
    says what they are worth.
    """
    if "worth_size" in ds:
        return {}
    return _ranked(
        ds,
        "moved_size",
        number,
        "mean size of the forecast's change with it in random order",
    )


def _ranked(
    ds: xr.Dataset, name: str, write: Callable[[float], str], what: str
) -> Card:
    values = array(ds, name, "covariate", "way")[:, names(ds, "way").index("shuffled")]
    order = [
        int(position) for position in np.argsort(-np.nan_to_num(values, nan=-np.inf))
    ][:_MAX_BARS]
    labels = names(ds, "covariate")
    series = len(forecast_series(ds))
    over = ""
    if series > 1:
        over = f", median over {series} series"
    bars = _bars(
        [(labels[position], float(values[position])) for position in order], write
    )
    return {"big": labels[order[0]], "note": f"{what} (MASE{over})", "bars": bars}


_CARDS: tuple[tuple[str, str, Callable[[xr.Dataset, int], Card]], ...] = (
    ("What moved it", "input_attribution", _moving),
    ("Can it be trusted", "deletion_curves", _trust),
    ("What a covariate is worth", "covariate_use", _worth),
    ("How far a covariate moves it", "covariate_use", _shuffling),
    ("Accuracy", "forecast", _accuracy),
    ("Where it forms", "logit_lens", _forming),
    ("What it needs", "ablation_effects", _needs),
    ("What it reads", "head_states", _reads),
)

"""Cards of a report's first screen: what the chapters say of one series, in four small drawings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.verdict import verdict
from tsfm_lens.viz.findings import finding
from tsfm_lens.viz.head_states import effects_of_heads, head_name, reading_of
from tsfm_lens.viz.input_attribution import group_name, moved, ranked
from tsfm_lens.viz.panels import segment_words
from tsfm_lens.viz.select import array, forecast_series, layer_name, median_position, names, unit_of
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import measured, signed

MAX_SERIES = 24  # tabs
_MAX_BARS = 4

Card = dict[str, Any]
"""What a card says of one series: ``big``, ``note``, ``bars`` (label, value, share of the largest), ``line``."""


def cards_of(results: Mapping[str, Any], anchors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Make the cards that the results allow, each with its title, the chapter it is of, and a card per series."""
    rows = []
    explained = next((str(ds.attrs["target"]) for ds in results.values() if _kind(ds) == "input_attribution"), "")
    for title, kind, make in _CARDS:
        name = next((name for name, ds in results.items() if _kind(ds) == kind), None)
        if name is None:
            continue
        ds = results[name]
        ids = names(ds, "series")
        places = [ids.index(explained)] if explained in ids else forecast_series(ds, MAX_SERIES)
        cards = {ids[place]: make(ds, place) for place in places}
        rows.append({"title": title, "anchor": anchors[name], "cards": {key: one for key, one in cards.items() if one}})
    return [card for card in rows if card["cards"]]


def _kind(ds: Any) -> str:
    return str(ds.attrs.get("kind")) if isinstance(ds, xr.Dataset) else ""


def _accuracy(ds: xr.Dataset, series: int) -> Card:
    """Compare the median with the truth and with the last season repeated, and count steps inside the band."""
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values, unit = array(ds, "quantile_forecast", "quantile", "step", series=series), unit_of(ds, series)
    low, high = values[levels.argmin()], values[levels.argmax()]
    share, width = f"{100 * (levels.max() - levels.min()):.3g} %", measured(unit)(float((high - low).mean()))
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(len(low), np.nan)
    finite = np.isfinite(truth)
    if not finite.any():
        return {"big": f"band of {width}", "note": f"mean width of the {share} band; the truth is not known yet"}
    error = float(np.abs(values[median_position(levels)] - truth)[finite].mean())
    inside = int(((truth >= low) & (truth <= high))[finite].sum())
    bars, note = [("this forecast", error)], f"{inside} of {int(finite.sum())} steps lie in the {share} band"
    context = array(ds, "context", "time", series=series) if "context" in ds else np.empty(0)
    context = context[np.isfinite(context)]
    season = int(ds["season"].values[series]) if "season" in ds.coords else 1
    if len(context) >= season:
        repeated = np.resize(context[-season:], len(truth))
        label = f"last season repeated ({season} steps)" if season > 1 else "last value repeated"
        bars.append((label, float(np.abs(repeated - truth)[finite].mean())))
    return {"big": measured(unit)(error), "note": f"mean absolute error; {note}", "bars": _bars(bars)}


def _forming(ds: xr.Dataset, series: int) -> Card:
    """Follow the entropy of the lens forecast over layers, or its distance from the final one where it has none."""
    layers = [layer_name(label) for label in names(ds, "layer")]
    if "entropy" in ds:
        values, what = array(ds, "entropy", "layer", "step", series=series).mean(axis=-1), "entropy"
        unit = "nats"
    else:
        middle = median_position(np.asarray(ds["quantile"].values, dtype=float))
        medians = array(ds, "quantile_forecast", "layer", "step", series=series, quantile=middle)
        values, what = np.abs(medians - medians[-1]).mean(axis=-1), "distance from the final forecast"
        unit = unit_of(ds, series) or "data units"
    if len(values) < 2:
        return {}
    falls, sinks = int(np.argmin(np.diff(values))) + 1, values[-1] < values[0]
    verdict = "it falls most there" if sinks else "it ends no lower than in the embedding, so it names no layer"
    note = f"{what} of the lens forecast after each layer, mean over steps; {verdict}"
    points = [
        (label, measured(unit)(value), value / (values.max() or 1.0))
        for label, value in zip(layers, values.tolist(), strict=True)
    ]
    return {"big": f"mostly in {layers[falls]}" if sinks else f"not told by {what}", "note": note, "line": points}


def _needs(ds: xr.Dataset, series: int) -> Card:
    """Rank heads and MLPs by how far the forecast moves without them, marked where significant over series."""
    parts = [place for place, kind in enumerate(ds["kind"].values) if kind != "layer"]
    labels, effect = names(ds, "component"), finding(ds, "mean_shift", "component")
    values, unit = array(ds, "mean_shift", "component", series=series), unit_of(ds, series) or "data units"
    order = sorted(parts, key=lambda place: -values[place])[:_MAX_BARS]
    if not order or not values[order[0]] > 0:
        return {}

    def mark(place: int) -> str:
        if effect is None:
            return ""
        learned = effect.learned is not None and bool(effect.learned[place])
        return " ★" * bool(effect.significant[place]) + " ◆" * learned

    bars = _bars([(labels[place] + mark(place), values[place]) for place in order])
    marks = {" ★": "★ significant over series", " ◆": "◆ larger than in untrained twins"}
    legend = [words for sign, words in marks.items() if any(sign in label for label, *_ in bars)]
    tested = "; ".join(legend) or "none is significant over series"
    return {"big": labels[order[0]], "note": f"mean change of the forecast without it ({unit}); {tested}", "bars": bars}


def _reads(ds: xr.Dataset, series: int) -> Card:
    """Say where the heads with the largest effects look most, the one with the largest first."""
    effect = effects_of_heads(ds, "mean_shift").isel(series=series).transpose("layer", "head").values
    floor = float(ds["mean_shift_floor"].values[series])
    bars, places = [], []
    for flat in np.argsort(-effect.ravel(), kind="stable")[:_MAX_BARS]:
        layer, head = (int(each) for each in np.unravel_index(flat, effect.shape))
        if effect[layer, head] <= floor:
            break
        reading = reading_of(ds, series, layer, head)
        places.append(reading.words)
        bars.append((f"{head_name(ds, layer, head)}: {reading.words}", reading.most))
    if not bars:
        return {}
    note = "the heads with the largest effects, largest first; where each looks most, and its attention there"
    return {"big": places[0], "note": f"{note} (mean over steps)", "bars": _bars(bars, percent)}


def _bars(entries: list[tuple[str, float]], write: Callable[[float], str] = number) -> list[tuple[str, str, float]]:
    largest = max(abs(value) for _, value in entries) or 1.0
    return [(label, write(value), abs(value) / largest) for label, value in entries]


def _moving(ds: xr.Dataset, _: int) -> Card:
    """Rank stretches of the past and covariates by how far they move the median."""
    steps = array(ds, "attribution", "segment", "step", quantile=median_position(ds["quantile"].values))
    unit, labels, words = unit_of(ds) or "data units", names(ds, "segment"), segment_words(ds)
    groups = ranked(ds, steps)[:_MAX_BARS]
    effects_of = [moved(steps[group].sum(0)) for group in groups]
    called = [group_name(labels, group, words).removesuffix(" in total") for group in groups]
    arrows = [{"up": "↑", "down": "↓"}.get(way, "↕") for _, way in effects_of]
    bars = _bars([(f"{name} {arrow}", size) for name, arrow, (size, _) in zip(called, arrows, effects_of, strict=True)])
    return {"big": called[0], "note": f"mean change of a step ({unit}); ↑ up, ↓ down, ↕ both", "bars": bars}


def _trust(ds: xr.Dataset, _: int) -> Card:
    """State the verdict of all faithfulness tests of the page, and the test that decides."""
    own, reasons = verdict(ds)
    word = str(ds.attrs.get("verdict", own))
    note = str(ds.attrs.get("reason", reasons[0])) + " Try another reference." * (word == "fails")
    return {"big": f"the explanation {word}", "note": note}


def _worth(ds: xr.Dataset, _: int) -> Card:
    """Rank covariates by the accuracy that is lost without them, over all series, or by how far they move forecasts."""
    name = "worth_size" if "worth_size" in ds else "moved_size"
    values = array(ds, name, "covariate", "way")[:, names(ds, "way").index("shuffled")]
    order = [int(place) for place in np.argsort(-np.nan_to_num(values, nan=-np.inf))][:_MAX_BARS]
    labels, series = names(ds, "covariate"), len(forecast_series(ds))
    acts, low, high = (array(ds, f"slope_{part}", "covariate") for part in ("acts", "low", "high"))
    ways = [
        f" {'↑' if least > 0 else '↓' if most < 0 else '↕'}" * bool(moves)
        for moves, least, most in zip(acts, low, high, strict=True)
    ]
    bars = _bars([(labels[place] + ways[place], float(values[place])) for place in order], signed)
    worth = name == "worth_size"
    what = "rise of the error with it in random order; above 0: it helps" if worth else "change of the forecast"
    note = f"{what} (MASE, median over {series} series); ↑ the forecast rises with it, ↓ falls, ↕ not alike"
    return {"big": labels[order[0]], "note": note, "bars": bars}


_CARDS: tuple[tuple[str, str, Callable[[xr.Dataset, int], Card]], ...] = (
    ("What moved it", "input_attribution", _moving),
    ("Can it be trusted", "deletion_curves", _trust),
    ("What a covariate is worth", "covariate_use", _worth),
    ("Accuracy", "forecast", _accuracy),
    ("Where it forms", "logit_lens", _forming),
    ("What it needs", "ablation", _needs),
    ("What it reads", "explore", _reads),
)

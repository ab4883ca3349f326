"""Effects of fine-tuning by component: what moved, and what setting it back costs.

:func:`reset_slopes` draws the errors, :func:`read_weight_effects` describes them, and
:func:`name_change` is the title of a page on them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, measurement, panels
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.ratios import ratio_axis, ratio_bounds, signed_percent
from tsfm_lens.viz.select import (
    array,
    find_unit,
    head_word,
    kind_word,
    name_model,
    name_statistic,
    names,
)
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, mixed, percent, plain
from tsfm_lens.viz.words import after_number, listed, num

__all__ = ["reset_slopes"]

_RESETS = ("cumulative_error", "cumulative_error_change")
_SHARES = ("norm", "relative_norm", "rank", "share")
_HALF = 0.5
_MAX_SERIES = 4  # series that a sentence names
_MAX_COLOURS = 8  # series that have a colour each
_ROW = 22  # pixels of a component
_DOT = 16  # pixels across the largest dot

measurement(
    "weight_effects",
    title="Effects of tuned weights",
    theme="Causes",
    summary=(
        "which components' weights differ from the base model's, and what setting "
        "each back does"
    ),
    description=(
        "Each component of a fine-tuned model is set back to the base model's "
        "weights, first by itself and then together with those before it. How far "
        "weights moved says nothing about what that does to the forecast, so both are "
        "shown. Each model forecasts by itself, a token model on its own path. Effects "
        "are shares of the series' range, errors ratios, so units do not matter."
    ),
    source="LoRA, Hu et al. 2021, arXiv:2106.09685",
    maker="made of two models and a run: `tsfm_lens.probes.weight_effects` makes it",
)


def name_change(ds: xr.Dataset) -> str:
    """Name both models and what differs between them, as the title of a page."""
    pair = f"{name_model(ds)} against {ds.attrs['base']}"
    components = names(ds, "component")
    if not components:
        return f"{pair}: no weight differs"
    if len(components) == 1:
        return f"{pair}: {name_components(ds)[0]} changed"
    return f"{pair}: {len(components)} components changed"


def name_components(ds: xr.Dataset) -> list[str]:
    """Name components as other pages do: "decoder layer 2, cross-attention head 3".

    Returns:
        The names, with the stack where the component's own name has it.
    """
    rows = zip(
        *(ds[name].values for name in ("stack", "layer", "kind", "head")), strict=True
    )
    texts = []
    for label, (stack, layer, kind, head) in zip(
        names(ds, "component"), rows, strict=True
    ):
        place = f"layer {layer}"
        if label.startswith(f"{stack}."):
            place = f"{stack} {place}"
        text = f"{place}, {kind_word(str(kind))}"
        # other weights are of no layer
        if layer < 0:
            text = kind_word(str(kind))
        elif head >= 0:
            text = f"{place}, {head_word(str(kind), head)}"
        texts.append(text)
    return texts


def read_weight_effects(ds: xr.Dataset) -> list[str]:
    """Return sentences on what tuning changed, and what setting it back does.

    Further sentences say where the weights moved most, and what is significant.
    """
    if ds.attrs["identical"]:
        return [
            f"Nothing differs: {name_model(ds)} is the base model {ds.attrs['base']},"
            " weight for weight."
        ]
    finding = []
    if "base_error_change" in ds:
        finding = _read_errors(ds)
    out = summarize(
        ds,
        "Components whose weights differ from those of {base}: {components}; most, as a"
        " share of their norm: {relative_norm:largest percent}.",
        "{adapters} adapters beside their matrices are read as what they add.",
        "Components that move the forecast most when set back one at a time, as shares"
        " of the series' range{share:basis}: {share:largest percent}.",
        effect="share",
        noun="components",
        labels=name_components,
        components=ds.sizes["component"],
        adapters=ds.attrs["adapters"] or None,
    )
    if np.isfinite(ds["share_size"]).any():
        # the last sentence compares with untrained models, no rivals of a tuned one
        out = out[:-1]
    return [*finding, *out]


def _most(ds: xr.Dataset) -> int:
    """Return the position of the component that changes the error most by itself."""
    sizes = array(ds, "error_change_size", "component")
    return int(np.argmax(np.nan_to_num(np.abs(sizes), nan=-1.0)))


def _read_errors(ds: xr.Dataset) -> list[str]:
    """Return sentences on what tuning did to the error, and what a reset does.

    A sentence says how few components undo half of it.
    """
    whole = read_estimate(ds, "base_error_change")
    tuned = array(ds, "cumulative_error", "back", "series")[0]
    base = array(ds, "base_error", "series")
    word = name_statistic(ds)
    # a change below rounding is none
    if not float(whole.size) or not whole.acts:
        return [f"Tuning left the error of the {word} forecast as it was."]
    most = _most(ds)
    alone = tuned * np.exp(array(ds, "error_change", "component", "series")[most])
    component = name_components(ds)[most]
    if ds.sizes["component"] == 1:
        subject = f"Setting {component} back, all that tuning changed,"
    else:
        subject = (
            f"Of {ds.sizes['component']} tuned components, setting {component} back"
            " and leaving the others tuned"
        )
    out = [
        f"Tuning {_compare(ds, base, tuned)}; mean absolute errors of the {word}"
        f" forecast, {_count_forecasts(ds, tuned)}. Whether tuning has seen these steps"
        " is not known here.",
        f"{subject} {_compare(ds, tuned, alone)}.",
    ]
    together = array(ds, "cumulative_error_change_size", "back")
    if ds.sizes["component"] > 1 and together[-1]:
        # together[n] is the change with the first n components set back, the last with
        # all of them
        count = int(np.argmax(together / together[-1] >= _HALF))
        first = name_components(ds)[0]
        if count == 1:
            who = f"Setting {first} back"
        else:
            who = f"Setting back the first {count} components, one after the other,"
        out.append(
            f"{who} undoes half or more of what tuning did, in the median over series."
        )
    if float(whole.facts.get("units", 0)) >= float(whole.facts.get("needed", 0)):
        out.append(f"What tuning did to the error is {whole.for_others()}.")
    return out


def _count_forecasts(ds: xr.Dataset, errors: np.ndarray) -> str:
    """Say of how many forecasts and steps the ``errors`` (series,) are."""
    count = int(np.isfinite(errors).sum())
    steps = ds.sizes["step"]
    length = "one step" if steps == 1 else f"{steps} steps"
    if count == 1:
        return f"{length} of one forecast (one series, one origin)"
    return f"{length} of {count} forecasts (a series and an origin each)"


def _compare(ds: xr.Dataset, before: np.ndarray, after: np.ndarray) -> str:
    """Say on how many series an error rises or falls, and by how much on which."""
    known = np.flatnonzero(np.isfinite(before) & np.isfinite(after) & (before > 0))
    changes = after / before - 1
    count = len(known)
    if not count:
        return "leaves the error as it was"
    n_raised = int((changes[known] > 0).sum())
    order = known[np.argsort(-np.abs(changes[known]), kind="stable")]
    texts = []
    for index in order[:_MAX_SERIES]:
        unit = after_number(find_unit(ds, int(index)))
        texts.append(
            f"{names(ds, 'series')[index]} {num(before[index])} →"
            f" {num(after[index])} {unit}".rstrip()
            + f" ({signed_percent(changes[index])})"
        )
    if count > _MAX_SERIES:
        texts.append(f"{count - _MAX_SERIES} more")
    if 2 * n_raised > count:
        verb, agreeing = "raises", n_raised
    else:
        verb, agreeing = "lowers", int((changes[known] < 0).sum())
    if count == 1:
        return f"{verb} the error: {texts[0]}"
    order_words = "; largest changes" if count > _MAX_SERIES else ""
    return (
        f"{verb} the error on {agreeing} of {count} series{order_words}:"
        f" {listed(texts)}"
    )


@figure(
    "weight_effects",
    "Error from the tuned model to its base, component by component.",
    variables=("cumulative_error_change", "error_change", "relative_norm"),
    table=_RESETS,
    sentences=read_weight_effects,
)
def reset_slopes(ds: xr.Dataset, *, top: int = 12) -> go.Figure:
    """Draw the error as components are set back, from the tuned model to its base.

    A line is a series, from the top: the tuned model, then with each component set back
    too, at last the base model. The area of a dot is how far the component's weights
    moved, as a share of their norm.

    Args:
        ds: result of kind "weight_effects".
        top: components that have a row; the rest are one step.

    Returns:
        One panel with a row for each component: the change of the error against the
        tuned model's, in percent.

    Example:
        >>> import copy
        >>> tuned = copy.deepcopy(lens)
        >>> _ = next(tuned.model.parameters()).data.mul_(1.1)
        >>> run = lens.run([[1.0, 2.0, 1.0, 2.0]], 2, truth=[[1.5, 2.5]])
        >>> effects = probes.weight_effects(lens, tuned, run)
        >>> len(viz.reset_slopes(effects).data)
        1
    """
    components = name_components(ds)
    shown = min(top, len(components))
    backs = [*range(shown + 1), len(components)]
    ratios = np.exp(array(ds, "cumulative_error_change", "series", "back"))[:, backs]
    labels = ["tuned model", *components[:shown]]
    if shown < len(components):
        labels.append(f"{len(components) - shown} more: base model")
    else:
        labels.append("base model")
    rows = [plain(label) for label in labels]
    if ds.sizes["series"] == 1:
        errors = array(ds, "cumulative_error", "series", "back")[0]
        unit = after_number(find_unit(ds, 0))
        for end in (0, -1):
            rows[end] += f"<br>{num(errors[end])} {unit}".rstrip()
    moved = array(ds, "relative_norm", "component")[:shown]
    # of weights that were 0 there is no share
    moved = np.where(np.isfinite(moved), moved, 0.0)
    canvas = blank(_ROW * len(labels), below=60)
    panel = canvas.panel()
    bounds = ratio_bounds(ratios)
    panel.vline(1.0)
    _draw_series(panel, ds, ratios, labels, moved)
    panel.x("change of the error (%, log scale)", **ratio_axis(bounds))
    panel.y(
        tickvals=list(range(len(labels))),
        ticktext=rows,
        range=[len(labels) - 0.5, -0.5],
        gridcolor=mixed(GREY, 0.2),
        showgrid=True,
    )
    is_cut = bool(((ratios < bounds[0]) | (ratios > bounds[1])).any())
    return canvas.finalize(
        f"Error of {name_model(ds)} as it is set back to {ds.attrs['base']}",
        "components by how far each moves the forecast; each is set back together with"
        " all rows above it",
        "a line: a series",
        f"area of a dot: how far weights moved, up to {percent(moved.max())}",
        "lines leave the axis" if is_cut else "",
    )


def _draw_series(
    panel: Panel,
    ds: xr.Dataset,
    ratios: np.ndarray,
    labels: list[str],
    moved: np.ndarray,
) -> None:
    """Draw a line for each series, with dots by how far weights moved."""
    series = names(ds, "series")
    has_colours = len(series) <= _MAX_COLOURS
    areas = np.zeros(len(labels))
    areas[1 : 1 + len(moved)] = moved
    # the models at both ends have a small dot, as has what hardly moved
    areas = np.maximum(areas, 0.05 * areas.max())
    marker = {
        "size": areas,
        "opacity": 1,
        "sizemode": "area",
        "sizeref": 2 * (areas.max() or 1.0) / _DOT**2,
    }
    for index, (name, line) in enumerate(zip(series, ratios, strict=True)):
        panel.line(
            line,
            np.arange(len(labels)),
            name if has_colours else "series",
            "%{text}",
            colour=CATEGORICAL[index] if has_colours else mixed(GREY, 0.5),
            mode="lines+markers",
            marker=marker,
            text=[
                f"{plain(name)}, {plain(label)}<br>{signed_percent(ratio - 1)}"
                for label, ratio in zip(labels, line, strict=True)
            ],
        )
    if not has_colours:
        panel.line(
            np.nanmedian(ratios, axis=0),
            np.arange(len(labels)),
            "median",
            "median<br>%{x:.3f} times the error",
            colour=INK,
            width=2.5,
        )


def _with_shares(ds: xr.Dataset) -> xr.Dataset:
    """Add the shares of no component where no weight differs."""
    if "share" in ds:
        return ds
    return ds.assign(share=ds["relative_norm"])


def _in_words(ds: xr.Dataset) -> xr.Dataset:
    """Name components as sentences do."""
    return _with_shares(ds).assign_coords(component=name_components(ds))


draw_shares = generic_figure(
    "weight_effects",
    "share",
    "Change of the forecast with each component set back to the base model.",
    prepare=_in_words,
    table=_SHARES,
    sentences=read_weight_effects,
)


@panels("weight_effects")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    """Draw the errors where there are any, and how far the forecast moves."""
    sentences = read_weight_effects(ds)
    if "cumulative_error_change" in ds:
        yield FigurePanel(reset_slopes(ds), frame(ds, *_RESETS), sentences)
        sentences = []
    yield FigurePanel(draw_shares(ds), frame(_with_shares(ds), *_SHARES), sentences)

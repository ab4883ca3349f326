"""Induction heads: their scores head by head, against each other, and under other thresholds."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.head_maps import HeadMap, head_maps
from tsfm_lens.viz.select import array, check, model_of, names
from tsfm_lens.viz.theme import BLACK, BLUE, GREY, INK, PALE, SEQUENTIAL, VERMILION, dress, number, plain

__all__ = ["induction_corner", "induction_maps", "overlap_thresholds"]

_AXES = {
    "prefix_matching": "prefix matching",
    "copy_score": "copy score (std)",
    "normalised": "normalised entropy",
}
_THRESHOLDS = {"prefix_matching": "prefix_from", "copy_score": "copy_from", "normalised": "sharp_below"}
_GROUPS = (
    ("neither", False, False, PALE, "circle"),
    ("sharp", False, True, BLUE, "square"),
    ("induction", True, False, VERMILION, "diamond"),
    ("both", True, True, BLACK, "star"),
)


def induction_maps(ds: xr.Dataset) -> go.Figure:
    """Layer × head maps of prefix matching and copy score, and of the entropy where known.

    Args:
        ds: of kind "induction".

    Returns:
        Two or three heat maps; frames are around induction heads. Entropies are dark where low.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "induction", "prefix_matching", "copy_score", "induction")
    found = ds["induction"].transpose("layer", "head").values.astype(bool)
    which = "the token after the last instance" if ds.attrs.get("offset", 1) else "the last instance"
    panels = [
        HeadMap(array(ds, "prefix_matching", "layer", "head"), "prefix matching", f"attention to {which}", low=0.0),
        HeadMap(array(ds, "copy_score", "layer", "head"), "copying", "copy score (standard deviations)"),
    ]
    if "entropy" in ds:
        values = array(ds, "entropy", "layer", "head")
        panels.append(HeadMap(values, "attention entropy", "entropy (nats)", reverse=True))
    thresholds = " and ".join(
        f"{word} of at least {number(ds.attrs[key])}"
        for word, key in (("prefix matching", "prefix_from"), ("a copy score", "copy_from"))
        if key in ds.attrs
    )
    motif, repeats = ds.attrs.get("motif", "?"), ds.attrs.get("repeats", "?")
    read = {"last": "at the last decoder position", "first": "after the prompt"}.get(ds.attrs.get("positions", ""))
    shown = f"{motif} random tokens shown {repeats} times" + (f", scores read {read}" if read else "")
    return head_maps(
        ds,
        panels,
        f"Induction heads of {model_of(ds)}: {int(found.sum())} of {found.size} cross-attention heads",
        f"{shown}; framed: {thresholds or 'induction heads'}",
        outlined=found,
    )


def induction_corner(ds: xr.Dataset) -> go.Figure:
    """Prefix matching, copy score and normalised entropy of all heads, each against each.

    Args:
        ds: of kind "induction_overlap".

    Returns:
        A 3 × 3 corner plot: histograms on the diagonal, a point a head below it, Pearson's correlation above.
        Dashed lines are the thresholds.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "induction_overlap", *_AXES, "correlation")
    scores = {name: array(ds, name, "layer", "head").ravel() for name in _AXES}
    fig = make_subplots(rows=3, cols=3, horizontal_spacing=0.07, vertical_spacing=0.05)
    groups = _groups(ds)
    for row, below in enumerate(_AXES, start=1):
        for col, beside in enumerate(_AXES, start=1):
            at = {"row": row, "col": col}
            if col > row:
                fig.update_xaxes(visible=False, **at)
                fig.update_yaxes(visible=False, **at)
                _write_correlation(fig, float(ds["correlation"].sel(score=below, other_score=beside)), row, col)
                continue
            fig.update_xaxes(title_text=_AXES[beside] if row == 3 else None, showticklabels=row == 3, **at)
            # the lines of one column share their axis, the histogram's heights have their own
            fig.update_xaxes(range=_room(scores[beside]), **at)
            if col == row:
                fig.add_trace(_histogram(scores[beside], _AXES[beside]), **at)
                fig.update_yaxes(title_text="heads", side="right", nticks=4, **at)
            else:
                _scatter(fig, ds, scores[beside], scores[below], groups, legend=(row, col) == (2, 1), **at)
                fig.update_yaxes(range=_room(scores[below]), nticks=5, **at)
                if col == 1:
                    fig.update_yaxes(title_text=_AXES[below], **at)
                fig.add_hline(y=_threshold(ds, below), line={"color": GREY, "width": 1, "dash": "4px,3px"}, **at)
            fig.add_vline(x=_threshold(ds, beside), line={"color": GREY, "width": 1, "dash": "4px,3px"}, **at)
    count = ds["count"].values
    return dress(
        fig,
        f"Induction and sharpness of the {int(count.sum())} heads of {model_of(ds)}",
        f"{int(count[0, 0])} of {int(count[0].sum())} induction heads and of {int(count[:, 0].sum())} sharp heads are "
        f"both; entropy along {ds.attrs.get('entropy_along', 'forecasts')}; dashed: thresholds; r: Pearson",
        plot_height=520,
        legend_rows=1,
        min_width=640,
    )


def overlap_thresholds(ds: xr.Dataset) -> go.Figure:
    """How the overlap of induction heads and sharp heads, and their number, depend on the thresholds.

    Args:
        ds: of kind "induction_overlap".

    Returns:
        Three heat maps: the share of induction heads that are sharp and of sharp heads that are induction heads,
        over copy score and entropy; the share of all heads that are induction heads, over copy score and
        prefix matching. Crosses are at the thresholds of the table. Cells without any such head are grey.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "induction_overlap", "sweep_sharp_given_induction", "sweep_induction_given_sharp")
    fixed = number(float(ds.attrs.get("prefix_from", np.nan)))
    panels = [
        ("P(sharp | induction)", "sweep_sharp_given_induction", "entropy_threshold", "sharp_below"),
        ("P(induction | sharp)", "sweep_induction_given_sharp", "entropy_threshold", "sharp_below"),
        ("P(induction)", "sweep_proportion_induction", "prefix_threshold", "prefix_from"),
    ]
    words = {"entropy_threshold": "normalised entropy below", "prefix_threshold": "prefix matching from"}
    fig = make_subplots(
        rows=1, cols=3, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=[panel[0] for panel in panels]
    )
    fig.update_annotations(font={"size": 12}, yshift=1)
    for col, (title, name, dim, key) in enumerate(panels, start=1):
        fig.add_trace(
            go.Heatmap(
                x=ds[dim].values,
                y=ds["copy_threshold"].values,
                z=array(ds, name, "copy_threshold", dim),
                coloraxis="coloraxis",
                name=title,
                hoverongaps=False,
                hovertemplate=f"{words[dim]} %{{x:.3g}}, copy score from %{{y:.3g}}<br>"
                f"{title} %{{z:.3g}}<extra></extra>",
            ),
            row=1,
            col=col,
        )
        fig.add_trace(
            go.Scatter(
                x=[ds.attrs.get(key)],
                y=[ds.attrs.get("copy_from")],
                mode="markers",
                name="thresholds of the table",
                showlegend=col == 1,
                marker={"symbol": "x-thin", "size": 11, "line": {"width": 2.5, "color": VERMILION}},
                hoverinfo="skip",
            ),
            row=1,
            col=col,
        )
        fig.update_xaxes(title_text=words[dim], nticks=6, row=1, col=col)
    fig.update_yaxes(title_text="copy score from (std)", row=1, col=1)
    bar = {"title": {"text": "share of heads", "side": "right"}}
    fig.update_layout(coloraxis={"colorscale": SEQUENTIAL, "cmin": 0.0, "cmax": 1.0, "colorbar": bar})
    fig = dress(
        fig,
        f"Overlap of induction and sharp heads of {model_of(ds)} under other thresholds",
        f"left and middle: prefix matching of at least {fixed}; grey: no head to take a share of",
        plot_height=300,
        above=30,
        legend_rows=1,
        min_width=760,
    )
    # 0 is white, so what is undefined must not be
    return fig.update_layout(margin_r=90, plot_bgcolor=PALE)


def _groups(ds: xr.Dataset) -> list[np.ndarray]:
    """Masks of the heads in each group, in the order of ``_GROUPS``."""
    induction, sharp = (
        ds[name].transpose("layer", "head").values.ravel().astype(bool) for name in ("induction", "sharp")
    )
    return [(induction == is_induction) & (sharp == is_sharp) for _, is_induction, is_sharp, _, _ in _GROUPS]


def _scatter(
    fig: go.Figure, ds: xr.Dataset, x: np.ndarray, y: np.ndarray, groups: list[np.ndarray], *, legend: bool, **at: int
) -> None:
    places = np.array([f"layer {layer}, head {head}" for layer in names(ds, "layer") for head in names(ds, "head")])
    for (word, _, _, colour, symbol), mask in zip(_GROUPS, groups, strict=True):
        if not mask.any():
            continue
        fig.add_trace(
            go.Scatter(
                x=x[mask],
                y=y[mask],
                mode="markers",
                name=f"{word} ({int(mask.sum())})",
                legendgroup=word,
                showlegend=legend,
                marker={"color": colour, "symbol": symbol, "size": 7, "line": {"color": INK, "width": 0.5}},
                customdata=places[mask],
                hovertemplate=f"%{{customdata}}: {plain(word)}<br>%{{x:.3g}}, %{{y:.3g}}<extra></extra>",
            ),
            **at,
        )


def _histogram(values: np.ndarray, word: str) -> go.Bar:
    count, edges = np.histogram(values, bins=min(max(len(values) // 4, 6), 24))
    return go.Bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=count,
        width=np.diff(edges),
        marker={"color": PALE, "line": {"color": GREY, "width": 0.5}},
        showlegend=False,
        name=word,
        hovertemplate=f"{word} near %{{x:.3g}}: %{{y}} heads<extra></extra>",
    )


def _write_correlation(fig: go.Figure, value: float, row: int, col: int) -> None:
    place = fig.get_subplot(row, col)
    text = f"r = {value:+.2f}".replace("-", "−") if np.isfinite(value) else "r undefined"
    where = {"x": sum(place.xaxis.domain) / 2, "y": sum(place.yaxis.domain) / 2}
    # what hangs on an invisible axis is not drawn
    fig.add_annotation(
        text=text, font={"size": 14, "color": GREY}, xref="paper", yref="paper", xanchor="center", **where
    )


def _room(values: np.ndarray) -> list[float]:
    pad = 0.06 * (float(np.ptp(values)) or 1.0)
    return [float(values.min()) - pad, float(values.max()) + pad]


def _threshold(ds: xr.Dataset, score: str) -> float:
    return float(ds.attrs[_THRESHOLDS[score]])

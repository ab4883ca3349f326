"""Faithfulness tests of an explanation: what each has, what is asked, and what failed.

:func:`input_tests` and :func:`route_tests` draw the checks of
:mod:`tsfm_lens.core.verdict` as a table, and :func:`read_tests` says which of them
fail. :func:`deletion_lines` draws the curves behind the tests of the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.core.verdict import Check, find_rules, list_checks, verdict
from tsfm_lens.viz.panels import name_segments, name_target, name_unit
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import Panel, Sheet, sheet, text_width
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREEN,
    GREY,
    LABEL_TYPE,
    PALE,
    VERMILION,
    mixed,
    plain,
    true_minus,
)

__all__ = ["deletion_lines", "input_tests", "route_tests"]

_BAND = f"{CONFIDENCE_TEXT} of random orders"
_CURVES = (("deletion", "largest masked first"), ("insertion", "largest shown first"))
_ROW = 26  # pixels
_END = 1.6  # of the axis of values; what lies beyond is an arrow
_ROOM = 1.4  # of the axis for the result in words
_TICKS = (0.0, 0.5, 1.0, 1.5)


def read_tests(ds: xr.Dataset) -> list[str]:
    """Return sentences on failed tests, the verdict on the explanation, the rules.

    The verdict is that of all tests of a page, where the page has left it in the
    attributes.
    """
    named = _named(ds)
    word, sentences = verdict(named)
    checks = list_checks(named)
    passed = sum(check.passed for check in checks)
    full = ds.attrs.get("verdict", word)
    by = "this test"
    if not ds.attrs.get("masked", 1):
        by = "tests of routes alone, as no input was masked,"
    elif "verdict" in ds.attrs:
        by = "all tests of this page"
    return [
        f"{sentences[0]} Of {len(checks)} values here {passed} pass; by {by} the"
        f" explanation {full} (criteria below).",
        *sentences[1:],
        *find_rules(ds),
    ]


def _named(ds: xr.Dataset) -> xr.Dataset:
    """Name the segments of a test as figures do."""
    if "segment" in ds.dims:
        return ds.assign_coords(segment=name_segments(ds))
    return ds


def checks_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the checks of a test: value, what is asked, and whether it passes."""
    rows = [
        {
            "of": check.subject,
            "test": check.name,
            "value": check.value,
            "random": check.random,
            "asked": check.asked,
            "result": _result(check),
        }
        for check in list_checks(_named(ds))
    ]
    return pd.DataFrame(rows).dropna(axis=1, how="all")


@figure(
    "deletion_curves",
    "Tests of the effects of the inputs: value, what is asked, passed or failed.",
    table=checks_table,
    sentences=read_tests,
)
def input_tests(ds: xr.Dataset) -> go.Figure:
    """Draw each test of the inputs' effects with the values that pass.

    Args:
        ds: result of kind "deletion_curves".

    Returns:
        One panel with a row for each test: its value as a dot, without a unit, and the
        values that pass shaded.

    Example:
        >>> found = explain.input_attribution(run, parts=3)
        >>> curves = explain.deletion_curves(run, found, orders=4, twin=False)
        >>> viz.input_tests(curves).layout.meta["title"]
        "Tests of the inputs' effects on the forecast of co2 by chronos-nano"
    """
    checks = list_checks(_named(ds))
    texts = [
        f"{check.value:.3f}, {check.asked} asked: {_result(check)}" for check in checks
    ]
    labels, results = (
        max(text_width(text, LABEL_TYPE) for text in column)
        for column in ([check.name for check in checks], texts)
    )
    # results have half of the axis
    min_width = round(labels + 2 * results)
    canvas = sheet([_ROW * len(checks)], min_width=min_width, below=34)
    panel = canvas.panel()
    for row, (check, text) in enumerate(zip(checks, texts, strict=True)):
        _draw_check(panel, row, check, text, "%{customdata:.3f}")
    panel.x(
        range=[-0.08, 2 * _END + 0.2],
        tickvals=_TICKS,
        ticktext=[f"{v:g}" for v in _TICKS],
    )
    return _finish(canvas, ds, [check.name for check in checks], "the inputs' effects")


@figure(
    "deletion_curves",
    "Deletion and insertion curves of an explanation.",
    table=lambda ds: frame(ds, "deletion", "insertion").merge(
        frame(ds, "r2", "slope", "sign_agreement", "area", "p"), on="explanation"
    ),
)
def deletion_lines(ds: xr.Dataset) -> go.Figure:
    """Draw how far the forecast moves as segments are masked, and as they are shown.

    There is a curve for each explanation, which orders the segments by their effect.

    Args:
        ds: result of kind "deletion_curves".

    Returns:
        Two panels: segments masked, and segments shown. Each has the distance from the
        whole forecast, in data units, by their number; a band holds 95 % of random
        orders.

    Example:
        >>> scores = {"newest first": [0, 1, 2]}
        >>> curves = explain.deletion_curves(run, scores, parts=3, orders=4)
        >>> viz.deletion_lines(curves).layout.meta["title"]
        'Deletion and insertion on chronos-nano'
    """
    explanations = names(ds, "explanation")
    unit = name_unit(ds)
    area = array(ds, "area", "explanation")
    p = array(ds, "p", "explanation")
    canvas = sheet(
        [280],
        [1, 1],
        titles=[text for _, text in _CURVES],
        column_gap=0.05,
        min_width=640,
        shared_yaxes=True,
    )
    # from no segment masked to all of them
    counts = np.arange(ds.sizes["masked"])
    for index, (panel, (name, _)) in enumerate(zip(canvas, _CURVES, strict=True)):
        low, high = (
            array(ds, f"random_{end}", "masked", curve=index) for end in ("low", "high")
        )
        panel.band(counts, low, high, mixed(PALE, 0.7), _BAND, legend=True)
        middle = array(ds, f"random_{name}", "draw", "masked").mean(0)
        panel.line(counts, middle, "random orders, mean", colour=GREY, dash="dot")
        for row, explanation in enumerate(explanations):
            y = array(ds, name, "masked", explanation=row)
            hover = (
                f"{plain(explanation)}<br>%{{x}} segments<br>%{{y:.4g}} {plain(unit)}"
            )
            colour = CATEGORICAL[row % len(CATEGORICAL)]
            panel.line(
                counts,
                y,
                explanation,
                hover,
                colour=colour,
                width=2.5 if row == 0 else 1.5,
                dots=5,
            )
        panel.x(
            "segments masked" if name == "deletion" else "segments shown",
            dtick=max(1, len(counts) // 12),
        )
    canvas.panel(1, 1).y(
        f"distance from the\nwhole forecast ({unit})", rangemode="tozero"
    )
    areas = [
        f"{name} {a:.2f} (p {q:.2g})"
        for name, a, q in zip(explanations, area, p, strict=True)
    ]
    remarks = [
        f"forecast of {name_target(ds)}",
        f"area between the curves, random 0: {', '.join(areas)}",
    ]
    return canvas.finalize(f"Deletion and insertion on {name_model(ds)}", *remarks)


@figure(
    "route_faithfulness",
    "Tests of the routes of each segment: what cutting removes, restoring recovers.",
    table=(
        "necessity",
        "sufficiency",
        "necessity_p",
        "sufficiency_p",
        "prediction_error",
        "overlap",
    ),
    sentences=read_tests,
)
def route_tests(ds: xr.Dataset) -> go.Figure:
    """Draw how much of each segment's effect cutting and restoring its route moves.

    Args:
        ds: result of kind "route_faithfulness".

    Returns:
        Three panels with a row for each segment: the share of the effect that cutting
        removes, the share that restoring recovers, and the error of the prediction, in
        percent.

    Example:
        >>> mlps = ["decoder.*.mlp"]
        >>> routes = explain.input_routes(run, parts=2, components=mlps)
        >>> tested = explain.route_faithfulness(run, routes, controls=4)
        >>> [panel.text for panel in viz.route_tests(tested).layout.annotations][:2]
        ['cutting the route removes', 'restoring it recovers']
    """
    rows: dict[str, list[Check]] = {}
    for check in list_checks(_named(ds)):
        rows.setdefault(check.subject, []).append(check)
    titles = (
        "cutting the route removes",
        "restoring it recovers",
        "error of prediction",
    )
    canvas = sheet(
        [_ROW * len(rows)],
        [1, 1, 1],
        titles=titles,
        column_gap=0.02,
        min_width=760,
        below=34,
        shared_yaxes=True,
    )
    for column, panel in enumerate(canvas):
        for row, checks in enumerate(rows.values()):
            check = checks[column]
            text = f"{round(100 * check.value)} %: {_result(check)}"
            _draw_check(panel, row, check, text, "%{customdata:.1%}")
        panel.x(
            range=[-0.08, _END + _ROOM],
            # the ends of what passes; between them there is no room for more
            tickvals=[0.0, 0.5, 1.5],
            ticktext=["0", "50", "150 %"],
            tickangle=0,
        )
    return _finish(canvas, ds, list(rows), "routes", "grey tick: random components")


def _result(check: Check) -> str:
    return "passed" if check.passed else "failed"


def _draw_check(panel: Panel, row: int, check: Check, text: str, write: str) -> None:
    """Draw a value as a dot on the values that pass, and its result beside it."""
    low = max(check.low, 0.0)
    high = min(check.high, _END)
    if high > low:
        panel.shape(
            "rect",
            (low, high),
            (row - 0.38, row + 0.38),
            fillcolor=mixed(GREEN, 0.18),
            line_width=0,
            layer="below",
        )
    name = plain(f"{check.subject}, {check.name}")
    colour = BLUE if check.passed else VERMILION
    symbol = "circle" if check.passed else "x"
    # beyond the axis an arrow points to where the value lies
    if check.value > _END:
        symbol = "triangle-right"
    elif check.value < 0:
        symbol = "triangle-left"
    random_hover = f"{name}<br>random components {write}"
    hover = f"{name}<br>{write}<br>asked: {plain(check.asked)}"
    for value, words, shade, size, mark in (
        (check.random, random_hover, GREY, 14, "line-ns-open"),
        (check.value, hover, colour, 10, symbol),
    ):
        if np.isfinite(value):
            panel.dots(
                [min(max(value, 0.0), _END)],
                [row],
                "",
                words,
                colour=shade,
                size=size,
                symbol=mark,
                customdata=[value],
            )
    panel.note(
        true_minus(text), _END + 0.1, row, xanchor="left", size=12, colour=colour
    )


def _finish(
    canvas: Sheet, ds: xr.Dataset, labels: Sequence[str], noun: str, *remarks: str
) -> go.Figure:
    """Name the rows, and give the figure its title."""
    canvas.y(
        range=[len(labels) - 0.5, -0.5],
        tickvals=list(range(len(labels))),
        ticktext=[plain(label) for label in labels],
        ticks="",
        showline=False,
    )
    return canvas.finalize(
        f"Tests of {noun} on the forecast of {name_target(ds)} by {name_model(ds)}",
        "dot: measured; shaded: values that pass",
        "arrow: beyond the axis",
        *remarks,
    )

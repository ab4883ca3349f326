"""Curves and points of the studies' results, one for each label.

The results are tables (data frames) with a row per run or draw; labels, such as names
of models, are in one of their columns. Read :func:`curve_sheet` first, which draws a
whole figure; :func:`add_curves` and :func:`add_points` draw into one panel.
Training and measuring are elsewhere: here only finished tables are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.viz.findings import mean_of_seeds
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.sheet import Panel, Sheet, blank
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed, plain


def add_curves(
    panel: Panel,
    table: pd.DataFrame,
    x: str,
    y: str,
    label: str,
    *,
    repeat: str | None = None,
    geometric: bool = False,
    **look: Any,
) -> None:
    """Draw a curve for each label, in the order of the table.

    Args:
        x: column of the horizontal axis.
        y: column of the vertical axis.
        label: column whose values are one curve each.
        repeat: column of seeds or draws; each is a thin line behind their mean.
        geometric: whether that mean is geometric, as a logarithmic axis asks for.
        look: options of the curves, see :meth:`Panel.line`.
    """
    for name, rows, colour in _by_label(table, y, label):
        hover = f"{plain(name)}<br>%{{x}}: %{{y:.4g}}"
        if repeat is not None:
            for _, seed_rows in rows.groupby(repeat):
                faint = mixed(colour, 0.4)
                panel.line(
                    seed_rows[x], seed_rows[y], "", hover, colour=faint, width=0.8
                )
        # only a mean of repeats is geometric
        if repeat is not None and geometric:
            means = np.exp(np.log(rows[y]).groupby(rows[x]).mean())
        else:
            means = rows[y].groupby(rows[x]).mean()
        style = {"colour": colour, "width": 2.0, **look}
        panel.line(means.index.to_numpy(), means.to_numpy(), name, hover, **style)


def add_points(
    panel: Panel,
    table: pd.DataFrame,
    x: str,
    y: str,
    label: str,
) -> None:
    """Draw every row as a pale point, and each mean with its 95 % interval.

    Means are over the rows of one label that share a value of ``x``.

    Args:
        x: column of the horizontal axis.
        y: column of the values.
        label: column whose values have one colour each.
    """
    for name, rows, colour in _by_label(table, y, label):
        hover = f"{plain(name)}<br>%{{y:.4g}}"
        means = rows.groupby(x)[y].mean()
        if len(means) > 1:
            faint = mixed(colour, 0.6)
            panel.line(means.index, means, "", "", colour=faint, width=1.2, group=name)
        for position, point_rows in rows.groupby(x):
            mean = mean_of_seeds(point_rows[y].to_numpy())
            xs = [position] * len(point_rows)
            faint = mixed(colour, 0.45)
            panel.dots(xs, point_rows[y], "", hover, colour=faint, size=4, group=name)
            text = f"{hover}, mean of {len(point_rows)}"
            panel.dots(
                [position], mean.size, name, text, size=9, colour=colour, noise=mean
            )


def _by_label(
    table: pd.DataFrame, y: str, label: str
) -> Sequence[tuple[str, pd.DataFrame, str]]:
    """Return the name, the finite rows and the colour of each label."""
    groups = table.dropna(subset=[y]).groupby(label, sort=False)
    return [
        (str(name), rows, CATEGORICAL[index % len(CATEGORICAL)])
        for index, (name, rows) in enumerate(groups)
    ]


def curve_sheet(
    table: pd.DataFrame,
    x: str,
    y: str,
    label: str,
    *,
    axes: tuple[str, str],
    panel: str | None = None,
    log: str = "",
    reference: tuple[str, Any, Any] | None = None,
    **options: Any,
) -> Sheet:
    """Draw the curves of a table, a panel for each value of a column.

    Args:
        x: column of the horizontal axis.
        y: column of the vertical axis.
        label: column whose values are one curve each.
        axes: titles of both axes.
        panel: column whose values are one panel each; one panel in all if None.
        log: "x", "y" or "xy": axes with a logarithmic scale.
        reference: name, x and y of a dotted curve in every panel.
        options: see :func:`add_curves`.
    """
    if panel is None:
        parts = [table]
        figure = blank(310, min_width=440)
        figure.x(axes[0])
        figure.y(axes[1])
    else:
        groups = table.groupby(panel, sort=False)
        parts = [rows for _, rows in groups]
        titles = [(f"{panel} {name}",) for name, _ in groups]
        figure = panel_grid(titles, row_height=230, most=3)
        title_axes(figure, *axes)
    for subplot, part in zip(figure, parts, strict=True):
        geometric = "y" in log
        add_curves(subplot, part, x, y, label, geometric=geometric, **options)
        if reference is not None:
            add_reference(subplot, *reference)
    if "x" in log:
        figure.x(**LOG_AXIS)
    if "y" in log:
        figure.y(**LOG_AXIS)
    return figure


def add_reference(panel: Panel, name: str, x: Any, y: Any) -> None:
    """Draw a dotted curve to which the others are compared."""
    hover = f"{name}<br>%{{y:.4g}}"
    panel.line(x, y, name, hover, colour=INK, width=1.2, dash="dot")

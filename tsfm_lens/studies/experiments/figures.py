"""Figures of grids of training runs."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.studies._shim import draws
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.noise import mean_of_seeds
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sheet import Look, Panel, blank, sheet
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed

__all__ = [
    "in_context_errors",
    "learning_rates",
    "losses_by_cost",
    "run_curves",
    "run_errors",
    "run_errors_over",
]

_ROW = 24  # pixels of an arm
_SYMBOLS, _MARKS = ("square", "diamond", "cross", "triangle-up"), 8  # of arms beyond the colours; marks on a line


@draws("lab_runs", needs=("curve",))
def run_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the validation error by epoch, a colour for each arm.

    Args:
        ds: of kind "lab_runs".

    Returns:
        Thin lines are seeds, thick ones their geometric mean as far as all seeds go, with marks on them where arms
        share a colour. The dotted line is the expected error of the least-squares oracle where ``attrs["oracle"]`` has
        it.

    Example:
        >>> fig = figures.run_curves(experiments.record("toy"))
        >>> fig.layout.meta["title"]
        'Validation error over training'
    """
    figure = blank(320, min_width=440)
    panel = next(iter(figure))
    curves, epochs = array(ds, "curve", "arm", "seed", "epoch"), np.arange(ds.sizes["epoch"])
    oracle = float(ds.attrs.get("oracle", np.nan))
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), curves, strict=True)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        finite = of_seeds[np.isfinite(of_seeds).any(axis=1)]
        for number, line in enumerate(finite):
            hover = f"{arm}, seed {number}<br>epoch %{{x}}: %{{y:.4g}}"
            panel.line(epochs, line, "", hover, colour=mixed(colour, 0.4), width=0.8)
        mean = np.exp(np.log(finite).mean(axis=0))
        look: Look = {"colour": colour, "width": 2.2}
        if symbol := _symbol(place):
            marker = {"symbol": symbol, "size": 7, "color": colour, "maxdisplayed": _MARKS}
            look |= {"mode": "lines+markers", "marker": marker}
        panel.line(epochs, mean, arm, f"{arm}, mean<br>epoch %{{x}}: %{{y:.4g}}", **look)
    if np.isfinite(oracle):
        ends = epochs[[0, -1]]
        hover = "least-squares oracle, expected<br>%{y:.4g}"
        panel.line(ends, np.full(2, oracle), "least-squares oracle", hover, colour=INK, width=1.2, dash="dot")
    panel.x("epoch")
    panel.y("validation error (mean square)", **log_axis(np.append(curves.ravel(), oracle)))
    count = int(np.isfinite(curves[..., 0]).sum(axis=1).max())
    return figure.dress(
        "Validation error over training",
        f"thin: {count} seeds, thick: their geometric mean",
        str(ds.attrs.get("about", "")),
    )


@draws("lab_runs", needs=("test_mse",))
def run_errors(ds: xr.Dataset) -> go.Figure:
    """Draw the test error of every seed, arm by arm.

    Args:
        ds: of kind "lab_runs", of files.

    Returns:
        A row for each arm: small points are seeds, large ones their mean with its 95 % interval.

    Example:
        >>> figures.run_errors(experiments.record("benchmarks")).layout.meta["title"]
        'Test error by arm'
    """
    arms, errors = names(ds, "arm"), array(ds, "test_mse", "arm", "seed")
    figure = blank(max(_ROW * len(arms), 120), min_width=460)
    panel = next(iter(figure))
    for place, (arm, of_seeds) in enumerate(zip(arms, errors, strict=True)):
        _dots(panel, float(place), of_seeds[np.isfinite(of_seeds)], arm, INK, across=True, legend=False)
    panel.x("test error (mean square)", **log_axis(errors.ravel()))
    panel.y(tickvals=list(range(len(arms))), ticktext=arms, range=[len(arms) - 0.5, -0.5], showgrid=False)
    return figure.dress("Test error by arm", _seeds(errors))


@draws("lab_runs", needs=("test_mse", "rho"))
def run_errors_over(ds: xr.Dataset, over: str = "rho") -> go.Figure:
    """Draw the test error over the radius of sharpness-aware minimisation, or over the horizon.

    Args:
        ds: of kind "lab_runs", of files.
        over: "rho" or "horizon", InputError for another; arms whose names agree but for it are one curve.

    Returns:
        Means over seeds with their 95 % intervals, and every seed as a small point.

    Example:
        >>> figures.run_errors_over(experiments.record("benchmarks"), "horizon").layout.meta["title"]
        'Test error by horizon'
    """
    if over not in ("rho", "horizon"):
        raise InputError(f"over={over!r}; expected 'rho' or 'horizon'")
    errors, at = array(ds, "test_mse", "arm", "seed"), np.asarray(ds[over].values, dtype=float)
    titles = [_without(name, over, float(value)) for name, value in zip(names(ds, "arm"), at, strict=True)]
    figure = blank(300, min_width=420)
    panel = next(iter(figure))
    for place, title in enumerate(dict.fromkeys(titles)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = sorted((row for row, name in enumerate(titles) if name == title), key=lambda row: float(at[row]))
        finite = [errors[row][np.isfinite(errors[row])] for row in rows]
        panel.line(at[rows], [one.mean() for one in finite], title, "", colour=mixed(colour, 0.6), width=1.2)
        for row, one in zip(rows, finite, strict=True):
            _dots(panel, float(at[row]), one, title, colour, symbol=_symbol(place))
    word = "radius ρ of sharpness-aware minimisation" if over == "rho" else "horizon"
    panel.x(word)
    panel.y("test error (mean square)")
    return figure.dress(f"Test error by {'ρ' if over == 'rho' else 'horizon'}", _seeds(errors))


def _without(name: str, over: str, value: float) -> str:
    """Return the name of an arm without the part that gives ρ or the horizon."""
    data, horizon, rest = [*name.split(" ", 2), "", ""][:3]
    if over == "horizon":
        return f"{data} {rest}"
    return f"{data} {horizon} {rest.removesuffix(f'rho {value:g}')}".strip()


def _dots(
    panel: Panel,
    place: float,
    of_seeds: np.ndarray,
    arm: str,
    colour: str,
    *,
    across: bool = False,
    legend: bool = True,
    symbol: str | None = None,
) -> None:
    """Draw every seed, and their mean with its interval."""
    count, mean = len(of_seeds), float(of_seeds.mean())
    first, second = (of_seeds, np.full(count, place)) if across else (np.full(count, place), of_seeds)
    number = "%{x:.4g}" if across else "%{y:.4g}"
    hover = f"{arm}<br>one seed: {number}"
    panel.dots(first, second, "", hover, colour=mixed(colour, 0.45), size=4, symbol=symbol, group=arm)
    words = f"{arm}<br>mean of {count} seeds: {number}"
    x, y = ([mean], [place]) if across else ([place], [mean])
    panel.dots(
        x,
        y,
        arm,
        words,
        colour=colour,
        size=8,
        symbol=symbol,
        noise=mean_of_seeds(of_seeds),
        across=across,
        legend=legend,
    )


def _symbol(place: int) -> str | None:
    """Return the symbol that separates an arm from the previous one of its colour; None for the first of a colour."""
    return (None, *_SYMBOLS)[place // len(CATEGORICAL) % (1 + len(_SYMBOLS))]


def _seeds(errors: np.ndarray) -> str:
    counts = np.isfinite(errors).sum(axis=1)
    few, many = int(counts.min()), int(counts.max())
    return f"{few} to {many} seeds" if few < many else f"{many} seeds"


@draws("in_context_runs", needs=("by_pairs", "oracle"))
def in_context_errors(ds: xr.Dataset) -> go.Figure:
    """Draw the error after the last pair by the scores' rank or the model's width, and by the number of pairs.

    Args:
        ds: of kind "in_context_runs".

    Returns:
        Left the mean over seeds with its 95 % interval, and every seed as a small point, over the rank of a head's
        scores by the inputs, or over the width where there are several; right the means over the number of pairs, at
        the largest width. Dotted: the expected error of least squares.

    Example:
        >>> fig = figures.in_context_errors(experiments.record("in_context"))
        >>> fig.layout.meta["title"]
        'Regression in context'
    """
    widths = np.asarray(ds["width"].values) if "width" in ds.coords else np.zeros(ds.sizes["arm"])
    by = "width" if len(np.unique(widths)) > 1 else "rank"
    figure = sheet([320], (1, 1), titles=("after the last pair", "by pairs seen"), column_gap=0.12, min_width=760)
    last, by_pairs = figure
    errors = array(ds, "by_pairs", "arm", "seed", "pairs")
    at = np.asarray(ds["rank_ratio"].values, float) if by == "rank" else widths.astype(float)
    titles = [str(value) for value in ds["group"].values] if "group" in ds.coords else names(ds, "arm")
    pairs, shift = np.arange(errors.shape[2]), _beside(at)
    for place, title in enumerate(dict.fromkeys(titles)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = [row for row, name in enumerate(titles) if name == title and np.isfinite(errors[row, :, -1]).any()]
        rows.sort(key=lambda row: float(at[row]))
        finite = {row: errors[row][np.isfinite(errors[row, :, -1])] for row in rows}
        if len(rows) > 1:
            means = [finite[row][:, -1].mean() for row in rows]
            last.line([at[row] * shift[row] for row in rows], means, "", "", colour=mixed(colour, 0.6), width=1.2)
        for row in rows:
            _arm(last, float(at[row] * shift[row]), finite[row][:, -1], title, colour)
        if rows:
            hover = f"{title}<br>after %{{x}} pairs: %{{y:.3g}}"
            by_pairs.line(pairs, finite[rows[-1]].mean(0), title, hover, colour=colour, width=1.8, dots=4)
    oracle = array(ds, "oracle", "pairs")
    words = "least squares, expected"
    by_pairs.line(pairs, oracle, words, f"{words}<br>%{{x}} pairs: %{{y:.3g}}", colour=INK, width=1.4, dash="dot")
    last.line(at[[at.argmin(), at.argmax()]], np.repeat(oracle[-1], 2), words, "", colour=INK, dash="dot")
    last.x("rank of a head's scores / inputs" if by == "rank" else "width D", **log_axis(at))
    by_pairs.x("pairs seen before" if by == "rank" else f"pairs seen before, D = {widths.max():g}")
    figure.y("squared error, of 1 without learning", rangemode="tozero")
    seeds = [int(np.isfinite(one[:, -1]).sum()) for one in errors]
    count = f"{min(seeds)} to {max(seeds)} seeds" if min(seeds) < max(seeds) else f"{max(seeds)} seeds"
    return figure.dress(
        "Regression in context", f"d = {ds.attrs.get('inputs', '?')}", f"{count}, 95 % intervals of means"
    )


def _beside(ratio: np.ndarray) -> np.ndarray:
    """Return factors that set arms of one rank side by side."""
    out = np.ones(len(ratio))
    for value in np.unique(ratio):
        same = np.flatnonzero(ratio == value)
        out[same] = 1.07 ** (np.arange(len(same)) - (len(same) - 1) / 2)
    return out


def _arm(panel: Panel, x: float, errors: np.ndarray, title: str, colour: str) -> None:
    count, noise = len(errors), mean_of_seeds(errors)
    panel.dots(
        np.full(count, x),
        errors,
        "",
        f"{title}<br>one seed: %{{y:.3g}}",
        colour=mixed(colour, 0.45),
        size=4,
        group=title,
    )
    hover = f"{title}<br>mean of {count} seeds: %{{y:.3g}}"
    panel.dots([x], noise.estimate, title, hover, colour=colour, size=9, noise=noise)


@draws("transfer_runs", needs=("mse",))
def learning_rates(ds: xr.Dataset) -> go.Figure:
    """Draw the error at the end by learning rate, a colour for each width, a panel for each parametrisation.

    Args:
        ds: of kind "transfer_runs".

    Returns:
        Thin lines are seeds, thick ones their mean; a diamond marks the rate of the lowest mean of a width. Rates at
        which a run came to no finite error have no point.

    Example:
        >>> fig = figures.learning_rates(experiments.record("transfer"))
        >>> fig.layout.meta["title"]
        'Learning rates across widths'
    """
    titles = names(ds, "parametrisation")
    figure = sheet(
        [300],
        [1] * len(titles),
        titles=titles,
        column_gap=0.05,
        min_width=230 * len(titles) + 80,
        shared_yaxes=True,
    )
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    rates = np.asarray(ds["rate"].values, float)
    for panel, of_kind in zip(figure, errors, strict=True):
        for place, (width, of_width) in enumerate(zip(ds["width"].values.tolist(), of_kind, strict=True)):
            colour, title = CATEGORICAL[place % len(CATEGORICAL)], f"width {width}"
            for seed in of_width.T:
                panel.line(
                    rates, seed, "", f"{title}<br>rate %{{x:.3g}}: %{{y:.3g}}", colour=mixed(colour, 0.4), width=0.8
                )
            finite = np.isfinite(of_width).any(axis=1)
            if finite.any():
                mean = np.where(finite, np.nanmean(np.where(finite[:, None], of_width, 0.0), axis=1), np.nan)
                hover = f"{title}, mean<br>rate %{{x:.3g}}: %{{y:.3g}}"
                panel.line(rates, mean, title, hover, colour=colour, width=2.2)
                best = int(np.nanargmin(mean))
                panel.dots(
                    rates[[best]], mean[[best]], "", f"best of {title}", colour=colour, size=11, symbol="diamond"
                )
        panel.x("learning rate", **log_axis(rates))
    figure.panel().y("squared error, of 1 without learning")
    count = int(np.isfinite(errors).any(axis=(1, 2)).sum(-1).max())
    remark = f"thin: {count} seeds, thick: their mean" if count > 1 else "one seed"
    return figure.dress("Learning rates across widths", remark, "diamonds: the best rate of a width")


@draws("level_training", needs=("loss",))
def losses_by_cost(ds: xr.Dataset) -> go.Figure:
    """Draw the loss on held-out series by the multiply-adds of the scores, a colour for each arm.

    Args:
        ds: of kind "level_training".

    Returns:
        Small points are seeds, large ones their mean with its 95 % interval.

    Example:
        >>> fig = figures.losses_by_cost(experiments.record("chronos_levels"))
        >>> fig.layout.meta["title"]
        'Loss by what the scores cost'
    """
    figure = blank(300, min_width=420)
    panel = next(iter(figure))
    losses, share = array(ds, "loss", "arm", "seed"), np.asarray(ds["score_share"].values, float)
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), losses, strict=True)):
        colour, finite = CATEGORICAL[place % len(CATEGORICAL)], of_seeds[np.isfinite(of_seeds)]
        where = np.full(len(finite), share[place])
        pale = mixed(colour, 0.45)
        panel.dots(where, finite, "", f"{arm}<br>one seed: %{{y:.4g}}", colour=pale, size=4, group=arm)
        panel.dots(
            share[[place]],
            finite.mean(keepdims=True),
            arm,
            f"{arm}<br>mean of {len(finite)} seeds: %{{y:.4g}}",
            colour=colour,
            size=9,
            noise=mean_of_seeds(finite),
        )
    panel.x("multiply-adds of the encoder's scores / those of standard attention", rangemode="tozero")
    panel.y("cross-entropy in nats a step")
    count = int(np.isfinite(losses).sum(axis=1).max())
    return figure.dress("Loss by what the scores cost", f"{ds.attrs.get('steps', '?')} steps, up to {count} seeds")

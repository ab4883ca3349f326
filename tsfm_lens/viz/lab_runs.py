"""Grids of training runs: errors by epoch of every arm and seed, where they end, and by what the arms differ in."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from scipy.special import stdtrit

from tsfm_lens.errors import InputError
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.noise import Finding
from tsfm_lens.viz.select import array, draws, names
from tsfm_lens.viz.sheet import Look, Panel, blank
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed

__all__ = ["run_curves", "run_errors", "run_errors_over"]

_ROW = 24  # pixels of an arm
_SYMBOLS, _MARKS = ("square", "diamond", "cross", "triangle-up"), 8  # of arms beyond the colours; marks on a line
_FEWEST = 3  # seeds that an interval takes


@draws("lab_runs", needs=("curve",))
def run_curves(ds: xr.Dataset) -> go.Figure:
    """Validation error by epoch, a colour for each arm.

    Args:
        ds: of kind "lab_runs".

    Returns:
        Thin lines are seeds, thick ones their geometric mean as far as all seeds go, with marks on them where arms
        share a colour. The dotted line is the expected error of the least-squares oracle where ``attrs["oracle"]`` has
        it.

    Example:
        >>> fig = viz.run_curves(lab.record("toy"))
        >>> fig.layout.meta["title"]
        'Validation error over training'
    """
    made = blank(320, min_width=440)
    panel = next(iter(made))
    curves, epochs = array(ds, "curve", "arm", "seed", "epoch"), np.arange(ds.sizes["epoch"])
    oracle = float(ds.attrs.get("oracle", np.nan))
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), curves, strict=True)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        known = of_seeds[np.isfinite(of_seeds).any(axis=1)]
        for number, line in enumerate(known):
            hover = f"{arm}, seed {number}<br>epoch %{{x}}: %{{y:.4g}}"
            panel.line(epochs, line, "", hover, colour=mixed(colour, 0.4), width=0.8)
        mean = np.exp(np.log(known).mean(axis=0))
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
    return made.dress(
        "Validation error over training",
        f"thin: {count} seeds, thick: their geometric mean",
        str(ds.attrs.get("about", "")),
    )


@draws("lab_runs", needs=("test_mse",))
def run_errors(ds: xr.Dataset) -> go.Figure:
    """Test error of every seed, arm by arm.

    Args:
        ds: of kind "lab_runs", of files.

    Returns:
        A row for each arm: small points are seeds, large ones their mean with its 95 % interval.

    Example:
        >>> viz.run_errors(lab.record("benchmarks")).layout.meta["title"]
        'Test error by arm'
    """
    arms, errors = names(ds, "arm"), array(ds, "test_mse", "arm", "seed")
    made = blank(max(_ROW * len(arms), 120), min_width=460)
    panel = next(iter(made))
    for place, (arm, of_seeds) in enumerate(zip(arms, errors, strict=True)):
        _dots(panel, float(place), of_seeds[np.isfinite(of_seeds)], arm, INK, across=True, legend=False)
    panel.x("test error (mean square)", **log_axis(errors.ravel()))
    panel.y(tickvals=list(range(len(arms))), ticktext=arms, range=[len(arms) - 0.5, -0.5], showgrid=False)
    return made.dress("Test error by arm", _seeds(errors))


@draws("lab_runs", needs=("test_mse", "rho"))
def run_errors_over(ds: xr.Dataset, over: str = "rho") -> go.Figure:
    """Test error over the radius of sharpness-aware minimisation, or over the horizon.

    Args:
        ds: of kind "lab_runs", of files.
        over: "rho" or "horizon", InputError for another; arms whose names agree but for it are one curve.

    Returns:
        Means over seeds with their 95 % intervals, and every seed as a small point.

    Example:
        >>> viz.run_errors_over(lab.record("benchmarks"), "horizon").layout.meta["title"]
        'Test error by horizon'
    """
    if over not in ("rho", "horizon"):
        raise InputError(f"over={over!r}; expected 'rho' or 'horizon'")
    errors, at = array(ds, "test_mse", "arm", "seed"), np.asarray(ds[over].values, dtype=float)
    titles = [_without(name, over, float(value)) for name, value in zip(names(ds, "arm"), at, strict=True)]
    made = blank(300, min_width=420)
    panel = next(iter(made))
    for place, title in enumerate(dict.fromkeys(titles)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = sorted((row for row, name in enumerate(titles) if name == title), key=lambda row: float(at[row]))
        known = [errors[row][np.isfinite(errors[row])] for row in rows]
        panel.line(at[rows], [one.mean() for one in known], title, "", colour=mixed(colour, 0.6), width=1.2)
        for row, one in zip(rows, known, strict=True):
            _dots(panel, float(at[row]), one, title, colour, symbol=_symbol(place))
    word = "radius ρ of sharpness-aware minimisation" if over == "rho" else "horizon"
    panel.x(word)
    panel.y("test error (mean square)")
    return made.dress(f"Test error by {'ρ' if over == 'rho' else 'horizon'}", _seeds(errors))


def _without(name: str, over: str, value: float) -> str:
    """The name of an arm without the part that tells ρ or the horizon."""
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
    """Every seed, and their mean with its interval."""
    count, mean = len(of_seeds), float(of_seeds.mean())
    first, second = (of_seeds, np.full(count, place)) if across else (np.full(count, place), of_seeds)
    number = "%{x:.4g}" if across else "%{y:.4g}"
    hover = f"{arm}<br>one seed: {number}"
    panel.dots(first, second, "", hover, colour=mixed(colour, 0.45), size=4, symbol=symbol, group=arm)
    error = float(of_seeds.std(ddof=1)) / count**0.5 if count >= _FEWEST else 0.0
    reach = float(stdtrit(count - 1, 0.975)) * error if error else 0.0
    ends = np.array([mean - reach]), np.array([mean + reach])
    noise = Finding(np.array([mean]), *ends, np.array([True]), 0.0, 0.0)
    words = f"{arm}<br>mean of {count} seeds: {number}"
    x, y = ([mean], [place]) if across else ([place], [mean])
    panel.dots(x, y, arm, words, colour=colour, size=8, symbol=symbol, noise=noise, across=across, legend=legend)


def _symbol(place: int) -> str | None:
    """What tells an arm from the one before it that has the same colour; nothing for the first of a colour."""
    return (None, *_SYMBOLS)[place // len(CATEGORICAL) % (1 + len(_SYMBOLS))]


def _seeds(errors: np.ndarray) -> str:
    counts = np.isfinite(errors).sum(axis=1)
    few, many = int(counts.min()), int(counts.max())
    return f"{few} to {many} seeds" if few < many else f"{many} seeds"

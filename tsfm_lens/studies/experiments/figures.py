"""Grids of training runs: figures, sentences, and the measurements that reports and the gallery show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, measurement, panels
from tsfm_lens.errors import InputError
from tsfm_lens.viz.findings import mean_of_seeds
from tsfm_lens.viz.grid import log_axis
from tsfm_lens.viz.select import array, names
from tsfm_lens.viz.sheet import Look, Panel, blank, sheet
from tsfm_lens.viz.theme import CATEGORICAL, INK, mixed
from tsfm_lens.viz.words import num

__all__ = [
    "in_context_errors",
    "learning_rates",
    "losses_by_cost",
    "run_curves",
    "run_errors",
    "run_errors_over",
]

_ROW = 24  # pixels of an arm
_SYMBOLS, _MARKS = (
    ("square", "diamond", "cross", "triangle-up"),
    8,
)  # of arms beyond the colours; marks on a line


measurement(
    "lab_runs",
    title="Validation error over training",
    theme="Training",
    summary="errors of training runs by arm and seed, epoch by epoch",
    description=(
        "Arms differ in model or optimiser alone; runs of one seed see the same "
        "batches."
    ),
    source="after SAMformer, figures 1, 2, 5, 8, 13, 14 and 15 (S1-F1)",
    paper=(
        "S1-F1",
        "S1-F15",
        "S1-F3",
        "S1-T1",
        "S1-T6",
        "S1-T9",
        "S1-T10",
        "S1-F5",
        "S1-F6",
        "S1-F7",
        "S1-F8",
        "S1-F13",
        "S1-F14",
        "S2-ETT",
    ),
    maker=(
        "made by grids of trainings: `python -m tsfm_lens.studies.experiments` "
        "makes it, `tsfm_lens.studies.experiments` ships one"
    ),
    subject=lambda ds: str(ds.attrs.get("about", ds.attrs["title"])),
)


def read_runs(ds: xr.Dataset) -> list[str]:
    """Describe where every arm ends, and which arms stay above the oracle."""
    last, oracle = (
        array(ds, "validation_mse", "arm", "seed"),
        float(ds.attrs.get("oracle", np.nan)),
    )
    out = []
    for arm, values in zip(names(ds, "arm"), last, strict=True):
        finite = values[np.isfinite(values)]
        over = f", {num(100 * (float(finite.min()) / oracle - 1))} % or more above the oracle"
        near = ", within 1 % of the oracle with every seed"
        beside = (
            ""
            if not np.isfinite(oracle)
            else near
            if finite.max() <= 1.01 * oracle
            else over
        )
        out.append(
            f"{arm} ends at {num(float(finite.min()))} to {num(float(finite.max()))} ({len(finite)} seeds){beside}."
        )
    return out


def read_errors(ds: xr.Dataset) -> list[str]:
    """Name the arm of the lowest test error of each benchmark, and the distance to the next one."""
    errors = array(ds, "test_mse", "arm", "seed")
    cells: dict[str, dict[str, float]] = {}
    for arm, of_seeds in zip(names(ds, "arm"), errors, strict=True):
        cell, rest = _cell(arm)
        cells.setdefault(cell, {})[rest] = float(np.nanmean(of_seeds))
    out = []
    for cell, means in cells.items():
        best, *others = sorted(means, key=means.__getitem__)
        beside = f", before {others[0]} ({num(means[others[0]])})" if others else ""
        where = f"{cell}: the" if cell else "The"
        out.append(
            f"{where} lowest mean test error is that of {best} ({num(means[best])}){beside}."
        )
    return out


def read_in_context(ds: xr.Dataset) -> list[str]:
    """Describe the error of every arm after the last pair, lowest first."""
    last = array(ds, "by_pairs", "arm", "seed", "pairs")[..., -1]
    sentences = []
    for arm, ratio, values in zip(
        names(ds, "arm"), ds["rank_ratio"].values, last, strict=True
    ):
        finite = values[np.isfinite(values)]
        if len(finite):
            ends = f"{num(float(finite.min()))} to {num(float(finite.max()))}, {len(finite)} seeds"
            words = f"{arm}: {num(float(finite.mean()))} ({ends}), scores of rank {num(float(ratio))} d."
            sentences.append((float(finite.mean()), words))
    return [words for _, words in sorted(sentences)]


def read_rates(ds: xr.Dataset) -> list[str]:
    """Name the best rate of every width, by parametrisation."""
    rates, sentences = np.asarray(ds["rate"].values, float), []
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    for kind, of_kind in zip(names(ds, "parametrisation"), errors, strict=True):
        best = []
        for width, of_width in zip(ds["width"].values.tolist(), of_kind, strict=True):
            finite = np.isfinite(of_width).any(axis=1)
            if finite.any():
                mean = np.array(
                    [
                        np.nanmean(row) if some else np.inf
                        for row, some in zip(of_width, finite, strict=True)
                    ]
                )
                best.append(
                    f"{num(float(rates[mean.argmin()]))} at width {width} ({num(float(mean.min()))})"
                )
        sentences.append(f"{kind}: the best rate is {', '.join(best)}.")
    return sentences


def read_losses(ds: xr.Dataset) -> list[str]:
    """Describe the loss of every arm with the cost of its scores."""
    sentences = []
    for arm, share, values in zip(
        names(ds, "arm"),
        ds["score_share"].values,
        array(ds, "loss", "arm", "seed"),
        strict=True,
    ):
        finite = values[np.isfinite(values)]
        ends = f"{num(float(finite.min()))} to {num(float(finite.max()))}, {len(finite)} seeds"
        sentences.append(
            f"{arm}: {num(float(finite.mean()))} nats ({ends}) at {num(float(share))} of the multiply-adds."
        )
    return sentences


@figure(
    "lab_runs", "Validation error of every arm and seed by epoch.", variables=("curve",)
)
def run_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the validation error by epoch, seeds as thin lines, their geometric mean as a thick one, the oracle dotted.

    Example:
        >>> fig = figures.run_curves(experiments.record("toy"))
        >>> fig.layout.meta["title"]
        'Validation error over training'
    """
    figure = blank(320, min_width=440)
    panel = next(iter(figure))
    curves, epochs = (
        array(ds, "curve", "arm", "seed", "epoch"),
        np.arange(ds.sizes["epoch"]),
    )
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
            marker = {
                "symbol": symbol,
                "size": 7,
                "color": colour,
                "maxdisplayed": _MARKS,
            }
            look |= {"mode": "lines+markers", "marker": marker}
        panel.line(
            epochs, mean, arm, f"{arm}, mean<br>epoch %{{x}}: %{{y:.4g}}", **look
        )
    if np.isfinite(oracle):
        ends = epochs[[0, -1]]
        hover = "least-squares oracle, expected<br>%{y:.4g}"
        panel.line(
            ends,
            np.full(2, oracle),
            "least-squares oracle",
            hover,
            colour=INK,
            width=1.2,
            dash="dot",
        )
    panel.x("epoch")
    panel.y(
        "validation error (mean square)", **log_axis(np.append(curves.ravel(), oracle))
    )
    count = int(np.isfinite(curves[..., 0]).sum(axis=1).max())
    return figure.dress(
        "Validation error over training",
        f"thin: {count} seeds, thick: their geometric mean",
        str(ds.attrs.get("about", "")),
    )


@figure("lab_runs", "Test error of every seed, arm by arm.", variables=("test_mse",))
def run_errors(ds: xr.Dataset) -> go.Figure:
    """Draw the test error of every seed, and the mean with its 95 % interval, arm by arm.

    Example:
        >>> figures.run_errors(experiments.record("benchmarks")).layout.meta["title"]
        'Test error by arm'
    """
    arms, errors = names(ds, "arm"), array(ds, "test_mse", "arm", "seed")
    figure = blank(max(_ROW * len(arms), 120), min_width=420)
    panel = next(iter(figure))
    for place, (arm, of_seeds) in enumerate(zip(arms, errors, strict=True)):
        _dots(
            panel,
            float(place),
            of_seeds[np.isfinite(of_seeds)],
            arm,
            INK,
            across=True,
            legend=False,
        )
    panel.x("test error (mean square)", **log_axis(errors.ravel()))
    panel.y(
        tickvals=list(range(len(arms))),
        ticktext=arms,
        range=[len(arms) - 0.5, -0.5],
        showgrid=False,
    )
    return figure.dress("Test error by arm", _seeds(errors))


@figure(
    "lab_runs",
    "Test error over the radius ρ of SAM, or over the horizon.",
    variables=("test_mse", "rho"),
)
def run_errors_over(ds: xr.Dataset, over: str = "rho") -> go.Figure:
    """Draw the test error over the radius of sharpness-aware minimisation, or over the horizon.

    Args:
        over: "rho" or "horizon", InputError for another; arms of one name are a curve, single ones are left out.

    Example:
        >>> figures.run_errors_over(experiments.record("benchmarks"), "horizon").layout.meta["title"]
        'Test error by horizon'
    """
    if over not in ("rho", "horizon"):
        raise InputError(f"over={over!r}; expected 'rho' or 'horizon'")
    errors, at = (
        array(ds, "test_mse", "arm", "seed"),
        np.asarray(ds[over].values, dtype=float),
    )
    titles = [
        _without(name, over, float(value))
        for name, value in zip(names(ds, "arm"), at, strict=True)
    ]
    figure = blank(300, min_width=420)
    panel = next(iter(figure))
    for place, title in enumerate(
        name for name in dict.fromkeys(titles) if titles.count(name) > 1
    ):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = sorted(
            (row for row, name in enumerate(titles) if name == title),
            key=lambda row: float(at[row]),
        )
        finite = [errors[row][np.isfinite(errors[row])] for row in rows]
        panel.line(
            at[rows],
            [one.mean() for one in finite],
            "",
            "",
            colour=mixed(colour, 0.6),
            width=1.2,
            group=title,
        )
        for row, one in zip(rows, finite, strict=True):
            _dots(panel, float(at[row]), one, title, colour)
    panel.x("radius ρ of sharpness-aware minimisation" if over == "rho" else "horizon")
    panel.y("test error (mean square)")
    return figure.dress(
        f"Test error by {'ρ' if over == 'rho' else 'horizon'}", _seeds(errors)
    )


def _without(name: str, over: str, value: float) -> str:
    """Return the name of an arm without the part that gives ρ or the horizon."""
    data, horizon, rest = [*name.split(" ", 2), "", ""][:3]
    if over == "horizon":
        return f"{data} {rest}"
    return f"{data} {horizon} {rest.removesuffix(f'rho {value:g}')}".strip()


def _dots(
    panel: Panel,
    place: float,
    errors: np.ndarray,
    arm: str,
    colour: str,
    *,
    across: bool = False,
    size: int = 8,
    digits: int = 4,
    **look: Any,
) -> None:
    """Draw every seed, and their mean with its interval, one above the other or along the axis."""
    noise, number = mean_of_seeds(errors), f"%{{{'x' if across else 'y'}:.{digits}g}}"
    pale: Look = {
        "colour": mixed(colour, 0.45),
        "size": 4,
        "symbol": look.get("symbol"),
        "group": arm,
    }
    seeds, middle = (errors, np.full(len(errors), place)), (noise.size, [place])
    x, y = seeds if across else seeds[::-1]
    panel.dots(x, y, "", f"{arm}<br>one seed: {number}", **pale)
    at, height = middle if across else middle[::-1]
    words = f"{arm}<br>mean of {len(errors)} seeds: {number}"
    panel.dots(
        at,
        height,
        arm,
        words,
        colour=colour,
        size=size,
        noise=noise,
        across=across,
        **look,
    )


def _symbol(place: int) -> str | None:
    """Return the symbol that separates an arm from the previous one of its colour; None for the first of a colour."""
    return (None, *_SYMBOLS)[place // len(CATEGORICAL) % (1 + len(_SYMBOLS))]


def _seeds(errors: np.ndarray) -> str:
    counts = np.isfinite(errors).sum(axis=1)
    few, many = int(counts.min()), int(counts.max())
    return f"{few} to {many} seeds" if few < many else f"{many} seeds"


measurement(
    "in_context_runs",
    title="Regression in context",
    theme="Training",
    summary=(
        "errors of regression in context by the rank of the scores, the width and "
        "the number of pairs"
    ),
    description=(
        "1 is the error without learning, 0 that of least squares once there are as "
        "many pairs as inputs. Few steps: an arm that is high may be slow as well "
        "as unable."
    ),
    source="after structured attention, figures 2, 3, 6 and 11 (S2-F2)",
    paper=(
        "S2-F2",
        "S2-F3",
        "S2-F11",
    ),
    maker=(
        "made by grids of trainings: `python -m tsfm_lens.studies.experiments` "
        "makes it, `tsfm_lens.studies.experiments` ships one"
    ),
    subject="d = {inputs}",
)


@figure(
    "in_context_runs",
    ("Error of regression in context by rank or width, and by pairs."),
    variables=(
        "by_pairs",
        "oracle",
    ),
    table=("by_pairs",),
    sentences=read_in_context,
)
def in_context_errors(ds: xr.Dataset) -> go.Figure:
    """Draw the error after the last pair by the scores' rank or the model's width, and by the number of pairs.

    Example:
        >>> fig = figures.in_context_errors(experiments.record("in_context"))
        >>> fig.layout.meta["title"]
        'Regression in context'
    """
    widths = (
        np.asarray(ds["width"].values)
        if "width" in ds.coords
        else np.zeros(ds.sizes["arm"])
    )
    by = "width" if len(np.unique(widths)) > 1 else "rank"
    figure = sheet(
        [320],
        (1, 1),
        titles=("after the last pair", "by pairs seen"),
        column_gap=0.12,
        min_width=760,
    )
    last, by_pairs = figure
    errors = array(ds, "by_pairs", "arm", "seed", "pairs")
    at = (
        np.asarray(ds["rank_ratio"].values, float)
        if by == "rank"
        else widths.astype(float)
    )
    titles = (
        [str(value) for value in ds["group"].values]
        if "group" in ds.coords
        else names(ds, "arm")
    )
    pairs, shift = np.arange(errors.shape[2]), _beside(at)
    for place, title in enumerate(dict.fromkeys(titles)):
        colour = CATEGORICAL[place % len(CATEGORICAL)]
        rows = [
            row
            for row, name in enumerate(titles)
            if name == title and np.isfinite(errors[row, :, -1]).any()
        ]
        rows.sort(key=lambda row: float(at[row]))
        finite = {row: errors[row][np.isfinite(errors[row, :, -1])] for row in rows}
        if len(rows) > 1:
            means = [finite[row][:, -1].mean() for row in rows]
            last.line(
                [at[row] * shift[row] for row in rows],
                means,
                "",
                "",
                colour=mixed(colour, 0.6),
                width=1.2,
            )
        for row in rows:
            where = float(at[row] * shift[row])
            _dots(
                last,
                where,
                finite[row][:, -1],
                title,
                colour,
                size=9,
                digits=3,
                symbol=_symbol(place),
            )
        if rows:
            hover = f"{title}<br>after %{{x}} pairs: %{{y:.3g}}"
            by_pairs.line(
                pairs,
                finite[rows[-1]].mean(0),
                title,
                hover,
                colour=colour,
                width=1.8,
                dots=4,
            )
    oracle = array(ds, "oracle", "pairs")
    words = "least squares, expected"
    by_pairs.line(
        pairs,
        oracle,
        words,
        f"{words}<br>%{{x}} pairs: %{{y:.3g}}",
        colour=INK,
        width=1.4,
        dash="dot",
    )
    last.line(
        at[[at.argmin(), at.argmax()]],
        np.repeat(oracle[-1], 2),
        words,
        "",
        colour=INK,
        dash="dot",
    )
    last.x(
        "rank of a head's scores / inputs" if by == "rank" else "width D",
        **log_axis(at),
    )
    by_pairs.x(
        "pairs seen before"
        if by == "rank"
        else f"pairs seen before, D = {widths.max():g}"
    )
    figure.y("squared error, of 1 without learning", rangemode="tozero")
    words = f"{_seeds(errors[..., -1])}, 95 % intervals of means"
    return figure.dress(
        "Regression in context", f"d = {ds.attrs.get('inputs', '?')}", words
    )


def _beside(ratio: np.ndarray) -> np.ndarray:
    """Return factors that set arms of one rank side by side."""
    out = np.ones(len(ratio))
    for value in np.unique(ratio):
        same = np.flatnonzero(ratio == value)
        out[same] = 1.07 ** (np.arange(len(same)) - (len(same) - 1) / 2)
    return out


measurement(
    "transfer_runs",
    title="Learning rates across widths",
    theme="Training",
    summary=(
        "errors by learning rate at several widths, by μP and by the standard "
        "parametrisation"
    ),
    description=(
        "Where the rules for weights and rates hold, curves of all widths have "
        "their lowest point at one rate."
    ),
    source="after structured attention, figure 5 (S2-F5)",
    paper=("S2-F5",),
    maker=(
        "made by grids of trainings: `python -m tsfm_lens.studies.experiments "
        "transfer` makes it, `tsfm_lens.studies.experiments` ships one"
    ),
    subject="d = {inputs}",
)


@figure(
    "transfer_runs",
    "Error by learning rate and width, for each parametrisation.",
    variables=("mse",),
    table=("mse",),
    sentences=read_rates,
)
def learning_rates(ds: xr.Dataset) -> go.Figure:
    """Draw the error at the end by learning rate; a diamond marks the rate of the lowest mean of a width.

    Example:
        >>> fig = figures.learning_rates(experiments.record("transfer"))
        >>> fig.layout.meta["title"]
        'Learning rates across widths'
    """
    titles = names(ds, "parametrisation")
    width = 230 * len(titles) + 80
    figure = sheet(
        [300],
        [1] * len(titles),
        titles=titles,
        column_gap=0.05,
        min_width=width,
        shared_yaxes=True,
    )
    errors = array(ds, "mse", "parametrisation", "width", "rate", "seed")
    rates = np.asarray(ds["rate"].values, float)
    for panel, of_kind in zip(figure, errors, strict=True):
        for place, (width, of_width) in enumerate(
            zip(ds["width"].values.tolist(), of_kind, strict=True)
        ):
            colour, title = CATEGORICAL[place % len(CATEGORICAL)], f"width {width}"
            for seed in of_width.T:
                hover = f"{title}<br>rate %{{x:.3g}}: %{{y:.3g}}"
                panel.line(rates, seed, "", hover, colour=mixed(colour, 0.4), width=0.8)
            finite = np.isfinite(of_width).any(axis=1)
            if finite.any():
                mean = np.where(
                    finite,
                    np.nanmean(np.where(finite[:, None], of_width, 0.0), axis=1),
                    np.nan,
                )
                hover = f"{title}, mean<br>rate %{{x:.3g}}: %{{y:.3g}}"
                panel.line(rates, mean, title, hover, colour=colour, width=2.2)
                best = int(np.nanargmin(mean))
                words = f"best of {title}"
                panel.dots(
                    rates[[best]],
                    mean[[best]],
                    "",
                    words,
                    colour=colour,
                    size=11,
                    symbol="diamond",
                )
        panel.x("learning rate", **log_axis(rates))
    figure.panel().y("squared error, of 1 without learning")
    count = int(np.isfinite(errors).any(axis=(1, 2)).sum(-1).max())
    remark = f"thin: {count} seeds, thick: their mean" if count > 1 else "one seed"
    return figure.dress(
        "Learning rates across widths", remark, "diamonds: the best rate of a width"
    )


measurement(
    "level_training",
    title="Chronos with scores by levels of tokens",
    theme="Training",
    summary=(
        "losses of Chronos models trained alike, with scores by nested blocks of "
        "tokens or standard ones"
    ),
    description=(
        "All arms take the same steps on the same batches; further left, scores "
        "take fewer multiply-adds."
    ),
    source=("after structured attention, section 5.2 and figure 15 (S2-CHR)"),
    paper=("S2-CHR",),
    maker=(
        "made by grids of trainings: `python -m tsfm_lens.studies.recipes.levels` "
        "makes it, `tsfm_lens.studies.experiments` ships one"
    ),
    subject="{steps} steps",
)


@figure(
    "level_training",
    "Loss by the multiply-adds of the scores.",
    variables=("loss",),
    table=("loss",),
    sentences=read_losses,
)
def losses_by_cost(ds: xr.Dataset) -> go.Figure:
    """Draw the loss on held-out series by the multiply-adds of the scores, means with their 95 % intervals.

    Example:
        >>> fig = figures.losses_by_cost(experiments.record("chronos_levels"))
        >>> fig.layout.meta["title"]
        'Loss by what the scores cost'
    """
    figure = blank(300, min_width=420)
    panel = next(iter(figure))
    losses, share = (
        array(ds, "loss", "arm", "seed"),
        np.asarray(ds["score_share"].values, float),
    )
    for place, (arm, of_seeds) in enumerate(zip(names(ds, "arm"), losses, strict=True)):
        finite = of_seeds[np.isfinite(of_seeds)]
        _dots(
            panel,
            float(share[place]),
            finite,
            arm,
            CATEGORICAL[place % len(CATEGORICAL)],
            size=9,
        )
    panel.x(
        "multiply-adds of the encoder's scores / those of standard attention",
        rangemode="tozero",
    )
    panel.y("cross-entropy in nats a step")
    count = int(np.isfinite(losses).sum(axis=1).max())
    return figure.dress(
        "Loss by what the scores cost",
        f"{ds.attrs.get('steps', '?')} steps, up to {count} seeds",
    )


def _cell(arm: str) -> tuple[str, str]:
    """Split an arm that begins with benchmark and horizon into these, else "", and the rest of its name."""
    parts = arm.split(" ", 2)
    if len(parts) < 3 or not parts[1].isdigit():
        return "", arm
    return f"{parts[0]}, H = {parts[1]}", parts[2]


def _varies(ds: xr.Dataset, over: str) -> bool:
    """Return whether arms that agree in everything else differ in ρ or in the horizon."""
    other = "horizon" if over == "rho" else "rho"
    if over == "horizon":
        return len(np.unique(ds[over].values)) > 1
    groups = zip(
        [name.split(" ")[0] for name in names(ds, "arm")],
        ds[other].values.tolist(),
        strict=True,
    )
    by_group: dict[tuple[str, int], set[float]] = {}
    for group, rho in zip(groups, ds[over].values.tolist(), strict=True):
        by_group.setdefault(group, set()).add(rho)
    # of benchmarks ρ is one of a few numbers by the table; a grid of it has more
    return max(map(len, by_group.values())) > 3


@panels("lab_runs")
def _plates(ds: xr.Dataset) -> Iterator[FigurePanel]:
    columns = [
        name
        for name in (
            "validation_mse",
            "test_mse",
            "test_mae",
            "best_epoch",
            "parameters",
        )
        if name in ds
    ]
    table = frame(ds, *columns)
    yield FigurePanel(run_curves(ds), table, read_runs(ds), "curves")
    if "test_mse" in ds:
        yield FigurePanel(run_errors(ds), table, read_errors(ds), "errors")
        for over in ("rho", "horizon") if {"rho", "horizon"} <= set(ds.coords) else ():
            if _varies(ds, over):
                yield FigurePanel(
                    run_errors_over(ds, over), table, read_errors(ds), f"over-{over}"
                )

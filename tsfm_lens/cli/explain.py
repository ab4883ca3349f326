"""Command that explains a forecast of one's own series."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsfm_lens.cli.common import Model, Sections, app, open_shown, progress_display, show_page, steps_shown
from tsfm_lens.cli.reading import Request, checked_kinds, forecasts
from tsfm_lens.console import echo
from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch

_MOST_NAMES = 4  # series


@app.command()
@forecasts()
def explain(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("explanation"),
    item: Annotated[str, typer.Option(metavar="NAME", help="Whose forecast; the first by default.")] = "",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="shapley, occlusion, …; see explain.attribute_inputs.")
    ] = "",
    reference: Annotated[
        str, typer.Option(metavar="NAME", help="What stands for a masked step: mean, missing, seasonal naive, …")
    ] = "mean",
    sections: Sections = None,
    holdout: Annotated[
        bool | None,
        typer.Option(
            "--holdout/--no-holdout",
            help="Keep the last HORIZON steps as the truth; by default where known covariates end with the target.",
        ),
    ] = None,
    *,
    request: Request,
) -> None:
    """Say which part of the past and which covariates moved a forecast, through which heads, and prove it."""
    from tsfm_lens.report import explanation, pipeline

    explanation.refuse_unknown(method or None, reference)
    kinds = checked_kinds(model, sections, explanation.SECTIONS, request.samples)
    pipeline.page_at(out)
    series, horizon = request.series(), request.horizon
    ends = _ends_early(series) if holdout is None else holdout
    if ends and holdout is None:
        _refuse_to_hold_out(series, horizon)
    with progress_display() as bar:
        lens = open_shown(bar, model)
        missing: dict[str, str] = {}
        kinds = tuple(pipeline.defined_for(lens, kinds, missing))
        progress = steps_shown(bar, lens, kinds)
        run = replace(request, holdout=ends).run(lens, series)
        options: dict[str, Any] = {"item": item or 0, "method": method or None, "reference": reference}
        explanation.explain(
            run, out, sections=kinds, **options, sources=request.data, progress=progress, left_out=missing
        )
    context, available = max(run.batch.lengths), max(series.lengths) - (run.horizon if ends else 0)
    if context < available:
        echo(f"note: {model} reads the last {context} of {available} steps", err=True)
    items = list(dict.fromkeys(series.groups))
    if not item and len(items) > 1:
        others = ", ".join(items[1:_MOST_NAMES]) + (", …" if len(items) > _MOST_NAMES else "")
        echo(f"note: explained is {items[0]}, the first of {len(items)}; --item explains another: {others}", err=True)
    if ends and holdout is None:
        echo(f"note: no covariate is known beyond the target, so its last {run.horizon} steps are held out", err=True)
    show_page(out / "index.html", missing, request.as_json)


def _ends_early(series: SeriesBatch) -> bool:
    """Return True if known covariates end with the target, so that its end must be held out."""
    ahead = {name: len(future) for name, future in zip(series.ids, series.futures, strict=True) if future is not None}
    short = [name for name, steps in ahead.items() if not steps]
    if short and len(short) < len(ahead):
        name, steps = max(ahead.items(), key=lambda each: each[1])
        raise InputError(
            f"{short[0]!r} is named with --known and ends with its target, and {name!r} goes on for {steps} steps; "
            "name it with --past, give its future, or hold out the end of every target with --holdout"
        )
    return bool(short)


def _refuse_to_hold_out(series: SeriesBatch, horizon: int | None) -> None:
    """Refuse a horizon that leaves no context where no truth was asked for."""
    shortest = min(series.lengths)
    if horizon is not None and horizon >= shortest:
        name = series.ids[series.lengths.index(shortest)]
        raise InputError(
            f"no covariate is known beyond the target, so that its last {horizon} steps would be held out, and "
            f"{name!r} has {shortest} in all; give --horizon {max(1, shortest // 2)} or shorter, or rows with the "
            "covariates' future and an empty target"
        )

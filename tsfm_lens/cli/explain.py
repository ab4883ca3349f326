"""The command that explains a forecast of one's own series."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsfm_lens.cli.common import Data, Horizon, Model, Seed, app, open_lens, progress_display, step_words
from tsfm_lens.cli.reading import Reading, read_data, reads_files

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch


@app.command()
@reads_files
def explain(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("explanation"),
    item: Annotated[str, typer.Option(metavar="NAME", help="Whose forecast; the first by default.")] = "",
    method: Annotated[
        str, typer.Option(metavar="NAME", help="shapley, occlusion, …; see explain.attribute_inputs.")
    ] = "",
    reference: Annotated[
        str, typer.Option(metavar="NAME", help="What stands for a masked step: missing, mean, seasonal naive, …")
    ] = "",
    chapters: Annotated[
        str | None,
        typer.Option(metavar="KIND[,KIND…]", help="Measurements to show, as `tsfm-lens measurements` lists them."),
    ] = None,
    horizon: Horizon = None,
    holdout: Annotated[
        bool | None,
        typer.Option(
            "--holdout/--no-holdout",
            help="Keep the last HORIZON steps as the truth; by default where known covariates end with the target.",
        ),
    ] = None,
    seed: Seed = 0,
    *,
    reading: Reading,
) -> None:
    """Say which part of the past and which covariates moved a forecast, through which heads, and prove it."""
    from tsfm_lens.explain import CHAPTERS
    from tsfm_lens.explain import explain as write_explanation
    from tsfm_lens.explain.page import refuse_unknown
    from tsfm_lens.pipeline import checked_chapters, defined_for, steps_of

    kinds = CHAPTERS if chapters is None else tuple(kind.strip() for kind in chapters.split(",") if kind.strip())
    checked_chapters(kinds)
    refuse_unknown(method or None, reference or None)
    series = read_data(data, reading)
    with progress_display() as bar:
        opening = bar.add_task("open the model", total=1)
        lens = open_lens(model)
        bar.update(opening, completed=1)
        missing: dict[str, str] = {}
        kinds = tuple(defined_for(lens, kinds, missing))
        bars = {name: bar.add_task(step_words(name), total=1, start=False) for name in steps_of(lens, kinds)}

        def progress(name: str, done: int, total: int) -> None:
            bar.start_task(bars[name])
            bar.update(bars[name], completed=done, total=total)

        ends = _ends_early(series) if holdout is None else holdout
        run = lens.run(series, horizon, holdout=ends, seed=seed)
        asked: dict[str, Any] = {"item": item or 0, "method": method or None, "reference": reference or None}
        write_explanation(run, out, chapters=kinds, **asked, sources=data, progress=progress, left_out=missing)
    if ends and holdout is None:
        typer.echo(
            f"note: no covariate is known beyond the target, so its last {run.horizon} steps are held out", err=True
        )
    for chapter, reason in missing.items():
        typer.echo(f"left out: {chapter}: {reason}", err=True)
    typer.echo(str(out / "index.html"))


def _ends_early(series: SeriesBatch) -> bool:
    """Whether what is known ends with the target, so that the end of the target has to be held out."""
    return any(future is not None and not len(future) for future in series.futures)

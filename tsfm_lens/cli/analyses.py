"""Commands that run a model on series: report, forecast, ablate, attribute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsfm_lens.cli.common import (
    AsJson,
    Data,
    Holdout,
    Horizon,
    Model,
    Seed,
    app,
    emit,
    open_lens,
    progress_display,
    show_rows,
    step_words,
)
from tsfm_lens.cli.reading import Reading, read_data, reads_files


@app.command()
@reads_files
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("report"),
    chapters: Annotated[
        str | None,
        typer.Option(metavar="KIND[,KIND…]", help="Measurements to report, as `tsfm-lens measurements` lists them."),
    ] = None,
    horizon: Horizon = None,
    holdout: Holdout = True,
    seed: Seed = 0,
    *,
    reading: Reading,
) -> None:
    """Analyse a model on series and write one HTML file that opens offline."""
    from tsfm_lens.pipeline import CHAPTERS, checked_chapters, steps_of
    from tsfm_lens.pipeline import report as write_report

    kinds = CHAPTERS if chapters is None else tuple(kind.strip() for kind in chapters.split(",") if kind.strip())
    # what can be wrong in the words is said before a model is opened
    checked_chapters(kinds)
    series = read_data(data, reading)
    with progress_display() as bar:
        opening = bar.add_task("open the model", total=1)
        lens = open_lens(model)
        bar.update(opening, completed=1)
        # one bar per step, all shown from the start, so that what is left to do can be seen
        bars = {name: bar.add_task(step_words(name), total=1, start=False) for name in steps_of(lens, kinds)}

        def progress(name: str, done: int, total: int) -> None:
            bar.start_task(bars[name])
            bar.update(bars[name], completed=done, total=total)

        run = lens.run(series, horizon, holdout=holdout, seed=seed)
        title = f"{model} on {', '.join(series.ids[:4])}{' …' if len(series) > 4 else ''}"
        missing: dict[str, str] = {}
        path = write_report(run, out, title=title, chapters=kinds, sources=data, progress=progress, left_out=missing)
    for chapter, reason in missing.items():
        typer.echo(f"left out: {chapter}: {reason}", err=True)
    typer.echo(str(path))


@app.command()
@reads_files
def forecast(
    model: Model,
    data: Data,
    horizon: Horizon = None,
    quantile: Annotated[list[float] | None, typer.Option("--quantile", "-q", help="Level; repeatable.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sample paths of a sampling model.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV to stdout, one row per series and step.")] = False,
    *,
    reading: Reading,
) -> None:
    """Forecast beyond the end of each series, in data units."""
    if as_json and as_csv:
        raise typer.BadParameter("choose one of --json and --csv")
    series = read_data(data, reading)
    from tsfm_lens.models.adapter import DECILES

    made = open_lens(model).forecast(series, horizon, quantiles=quantile or DECILES, num_samples=samples, seed=seed)
    if as_json:
        emit(made.to_dataset().drop_vars("sample", errors="ignore"))
        return
    frame = made.to_frame()
    if as_csv:
        from tsfm_lens.data.formulas import to_csv

        typer.echo(to_csv(frame), nl=False)
        return
    show_rows(list(frame.columns), frame.to_numpy().tolist())


@app.command()
@reads_files
def ablate(
    model: Model,
    data: Data,
    component: Annotated[
        list[str] | None, typer.Option("--component", "-c", metavar="GLOB", help="Name or glob; all by default.")
    ] = None,
    how: Annotated[str, typer.Option(help="What takes the component's place: zero.")] = "zero",
    horizon: Horizon = None,
    holdout: Holdout = True,
    samples: Annotated[int | None, typer.Option(min=1, help="Sample paths of a sampling model.")] = None,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Knock components out one at a time and measure what that does to the forecast."""
    series = read_data(data, reading)
    from tsfm_lens.probes import ablation_effects

    run = open_lens(model).run(series, horizon, holdout=holdout, num_samples=samples, seed=seed)
    with progress_display() as bar:
        row = bar.add_task("ablation", total=None)
        result = ablation_effects(
            run,
            components=component or None,
            how=how,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    if as_json:
        emit(result)
        return
    # a single step has no ranks to compare
    first = "spearman_distance" if "spearman_distance" in result else "mean_shift"
    columns = [name for name in (first, "mase_change", "mae_change") if name in result]
    means = result[columns].mean("series")
    order = means[first].values.argsort()[::-1][:top]
    names = [str(name) for name in result["component"].values]
    rows = [[names[i], *(float(means[column].values[i]) for column in columns)] for i in order]
    show_rows(["component", *columns], rows)


@app.command()
@reads_files
def attribute(
    model: Model,
    data: Data,
    horizon: Horizon = None,
    holdout: Holdout = True,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Split the forecast among the components that wrote it."""
    series = read_data(data, reading)
    from tsfm_lens.probes import attribute as attribute_forecast

    result = attribute_forecast(open_lens(model).run(series, horizon, holdout=holdout, seed=seed))
    if as_json:
        emit(result)
        return
    decompositions = [str(name) for name in result["decomposition"].values]
    middle = result["attribution"]
    if "quantile" in middle.dims:
        middle = middle.sel({"quantile": 0.5}, method="nearest")
    sizes = abs(middle).mean(["series", "step"]).transpose("component", "decomposition")
    order = sizes.values[:, -1].argsort()[::-1][:top]
    names = [str(name) for name in result["component"].values]
    units = [str(unit) for unit in result["unit"].values]
    header = [f"{name} ({unit})" if unit else name for name, unit in zip(decompositions, units, strict=True)]
    typer.echo("Mean size of each component's share, over series and steps.", err=True)
    show_rows(["component", *header], [[names[i], *map(float, sizes.values[i])] for i in order])

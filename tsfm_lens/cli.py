"""The command line: data to stdout, messages and progress to stderr; exit code 0 ok, 1 a LensError, 2 usage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from tsfm_lens.errors import LensError

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens

_MODEL_HELP = "Embedded checkpoint, local folder, or hub id."
_DATA_HELP = "CSV or Parquet file, bundled:NAME[,NAME…] or bundled:all; may be given more than once."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]
Data = Annotated[list[str], typer.Option("--data", "-d", metavar="FILE|bundled:NAME", help=_DATA_HELP)]
Horizon = Annotated[int | None, typer.Option(min=1, help="Forecast steps; the model's own by default.")]
Holdout = Annotated[bool, typer.Option(help="Keep the last HORIZON steps of each series as the truth.")]
Seed = Annotated[int, typer.Option(help="Seed of every sampling step.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON to stdout, for scripts.")]


_PIPED_WIDTH = 1000


class _Commands(TyperGroup):
    """A group that turns an error made on purpose into its message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except LensError as error:
            Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Commands,
    help="See inside a time-series foundation model, change one thing, know what it did to the forecast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of ``tsfm-lens``."""
    app(prog_name="tsfm-lens")


def _version(asked: bool) -> None:
    if asked:
        import tsfm_lens

        typer.echo(f"tsfm-lens-toolbox {tsfm_lens.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Options of all commands."""


@app.command()
def report(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("report"),
    horizon: Horizon = None,
    holdout: Holdout = True,
    seed: Seed = 0,
) -> None:
    """Analyse a model on series and write one HTML file that opens offline."""
    series = _read(data)
    with _progress() as bar:
        opening = bar.add_task("open the model", total=1)
        from tsfm_lens.pipeline import analyse, provenance, steps_of
        from tsfm_lens.report import build_report

        lens = _open(model)
        bar.update(opening, completed=1)
        # one bar a step, all shown from the start, so that what is left to do can be seen
        bars = {name: bar.add_task(_words(name), total=1, start=False) for name in steps_of(lens)}
        writing = bar.add_task("write the report", total=1, start=False)

        def progress(name: str, done: int, total: int) -> None:
            bar.start_task(bars[name])
            bar.update(bars[name], completed=done, total=total)

        results = analyse(lens, series, horizon, holdout=holdout, seed=seed, progress=progress)
        bar.start_task(writing)
        title = f"{model} on {', '.join(series.ids[:4])}{' …' if len(series) > 4 else ''}"
        path = build_report(results, out, title=title, provenance=provenance(lens, results, data, holdout=holdout))
        bar.update(writing, completed=1)
    typer.echo(str(path))


@app.command()
def forecast(
    model: Model,
    data: Data,
    horizon: Horizon = None,
    quantile: Annotated[list[float] | None, typer.Option("--quantile", "-q", help="Level; repeatable.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sample paths of a sampling model.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV to stdout, one row a series and step.")] = False,
) -> None:
    """Forecast beyond the end of each series, in data units."""
    if as_json and as_csv:
        raise typer.BadParameter("choose one of --json and --csv")
    series = _read(data)
    from tsfm_lens.models.adapter import DECILES

    made = _open(model).forecast(series, horizon, quantiles=quantile or DECILES, num_samples=samples, seed=seed)
    if as_json:
        _emit(made.to_dataset().drop_vars("sample", errors="ignore"))
        return
    frame = made.to_frame()
    if as_csv:
        typer.echo(frame.to_csv(index=False), nl=False)
        return
    _table(list(frame.columns), frame.to_numpy().tolist())


@app.command()
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
) -> None:
    """Knock components out one at a time and measure what that does to the forecast."""
    series = _read(data)
    from tsfm_lens.pipeline import prepare
    from tsfm_lens.probes import ablation_effects

    lens = _open(model)
    task = prepare(lens, series, horizon, holdout=holdout)
    with _progress() as bar:
        row = bar.add_task("ablation", total=None)
        result = ablation_effects(
            lens,
            task.context,
            task.horizon,
            components=component or None,
            how=how,
            truth=task.truth,
            num_samples=samples,
            seed=seed,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    if as_json:
        _emit(result)
        return
    columns = [name for name in ("spearman_distance", "mase_change", "mae_change") if name in result]
    means = result[columns].mean("series")
    order = means["spearman_distance"].values.argsort()[::-1][:top]
    names = [str(name) for name in result["component"].values]
    rows = [[names[i], *(float(means[column].values[i]) for column in columns)] for i in order]
    _table(["component", *columns], rows)


@app.command()
def attribute(
    model: Model,
    data: Data,
    horizon: Horizon = None,
    holdout: Holdout = True,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Split the forecast among the components that wrote it."""
    series = _read(data)
    from tsfm_lens.pipeline import prepare
    from tsfm_lens.probes import attribute as attribute_forecast

    lens = _open(model)
    task = prepare(lens, series, horizon, holdout=holdout)
    result = attribute_forecast(lens, task.context, task.horizon, truth=task.truth, seed=seed)
    if as_json:
        _emit(result)
        return
    methods = [str(name) for name in result["method"].values]
    middle = result["attribution"]
    if "quantile" in middle.dims:
        middle = middle.sel({"quantile": 0.5}, method="nearest")
    sizes = abs(middle).mean(["series", "step"]).transpose("component", "method")
    order = sizes.values[:, -1].argsort()[::-1][:top]
    names = [str(name) for name in result["component"].values]
    units = [str(unit) for unit in result["unit"].values]
    header = [f"{name} ({unit})" if unit else name for name, unit in zip(methods, units, strict=True)]
    typer.echo("Mean size of each component's share, over series and steps.", err=True)
    _table(["component", *header], [[names[i], *map(float, sizes.values[i])] for i in order])


@app.command()
def models(as_json: AsJson = False) -> None:
    """List architectures with their published sizes, and the embedded checkpoints."""

    from tsfm_lens.models.architecture import architectures
    from tsfm_lens.models.extras import status as extra_status
    from tsfm_lens.zoo import checkpoint_names

    known = architectures().values()
    if as_json:
        listed = [
            {
                "name": each.name,
                "title": each.title,
                "readout": each.readout,
                "published": dict(each.published),
                "extra": each.extra,
                "notes": each.notes,
            }
            for each in known
        ]
        typer.echo(json.dumps({"architectures": listed, "embedded": list(checkpoint_names())}))
        return
    there = {name: status.importable for name, status in extra_status().items()}
    rows: list[list[object]] = [[name, "embedded", name, "", ""] for name in checkpoint_names()]
    for each in known:
        needs = each.extra and f"[{each.extra}]" + ("" if there[each.extra] else " (not installed)")
        rows += [[each.title, size, hub_id, needs, each.notes] for size, hub_id in each.published.items()]
    _table(["model", "size", "load(…)", "extra", "note"], rows)
    typer.echo(
        "load() also takes a local folder, a pipeline or model of these libraries, and a model with a wiring of your "
        "own; `tsfm-lens doctor` says how to install an extra."
    )


@app.command()
def hooks(
    model: Model,
    pattern: Annotated[str, typer.Option("--filter", "-f", metavar="GLOB", help="* within a part, ** across.")] = "**",
    as_json: AsJson = False,
) -> None:
    """List hook points with their axes, and the shapes that one short run gives them."""
    from tsfm_lens.pipeline import hook_shapes

    listed = hook_shapes(_open(model), pattern)
    if as_json:
        typer.echo(json.dumps([{"name": n, "axes": axes.split(), "shape": list(shape)} for n, axes, shape in listed]))
        return
    _table(["hook point", "axes", "shape"], [[n, axes, " × ".join(map(str, shape))] for n, axes, shape in listed])


@app.command()
def data(as_json: AsJson = False) -> None:
    """List the bundled real series."""
    from dataclasses import asdict

    from tsfm_lens.data import bundled_info, bundled_names

    found = [bundled_info(name) for name in bundled_names()]
    if as_json:
        typer.echo(json.dumps([asdict(info) for info in found]))
        return
    rows: list[list[object]] = [
        [info.name, info.title, info.field, info.freq, info.length, info.unit, info.licence] for info in found
    ]
    _table(["name", "title", "field", "freq", "steps", "unit", "licence"], rows)


@app.command()
def doctor(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help=f"{_MODEL_HELP} Check it too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is installed and what is missing; with MODEL, run the conformance oracles on it."""
    from tsfm_lens.doctor import examine, plain_oracles, render

    facts = examine()
    if not as_json:
        for table in render(facts):
            _print(table)
    results = None
    if model is not None:
        from tsfm_lens.testing import check_lens

        with _progress() as bar:
            row = bar.add_task("conformance", total=1)
            # its own quick check would refuse what the table is there to show
            results = check_lens(_open(model, check=False))
            bar.update(row, completed=1)
    if as_json:
        checked = None if results is None else {"model": model, "oracles": plain_oracles(results)}
        typer.echo(json.dumps({**facts.plain(), "conformance": checked}, allow_nan=False))
    elif results is not None:
        from tsfm_lens.testing import oracle_table

        _print(oracle_table(results, f"Conformance of {model}"))
    if results and not all(result.passed for result in results):
        raise typer.Exit(1)


def _open(model: str, *, check: bool = True) -> Lens:
    """The lens, without the progress display of the library that reads the weights."""
    from transformers.utils import logging

    from tsfm_lens import load

    logging.disable_progress_bar()
    return load(model, check=check)


def _read(sources: Sequence[str]) -> SeriesBatch:
    """Series of every ``--data``."""
    from tsfm_lens.pipeline import read_sources

    return read_sources(sources)


def _emit(result: xr.Dataset) -> None:
    from tsfm_lens.pipeline import as_plain

    typer.echo(json.dumps(as_plain(result), allow_nan=False))


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table of results to stdout."""
    from rich.table import Table

    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(escape(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else escape(str(cell)) for cell in row))
    _print(table)


def _print(table: Table) -> None:
    """To stdout; as wide as it needs to be when piped, so no name is ever cut."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPED_WIDTH)
    console.print(table)


@contextmanager
def _progress() -> Iterator[Any]:
    """A progress display on stderr that leaves stdout alone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield bar


def _words(step: str) -> str:
    kind, _, rest = step.partition("_")
    return f"attention: {rest.replace('_', ' ')}" if kind == "attention" else step.replace("_", " ")


if __name__ == "__main__":
    main()

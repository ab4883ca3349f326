"""Command that compresses a model and compares its forecasts before and after.

The compression, and the measurement of what it does, are in :mod:`tsfm_lens.compress`;
here are options, progress and the table that is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from warnings import catch_warnings

import typer

from tsfm_lens.cli.common import (
    DAILY,
    Model,
    app,
    open_with_progress,
    progress_display,
    read_with_progress,
    show_rows,
    stage,
)
from tsfm_lens.cli.reading import Request, forecasts, read_data
from tsfm_lens.core.choices import check_patterns
from tsfm_lens.core.console import echo
from tsfm_lens.core.io import check_writable

if TYPE_CHECKING:
    import xarray as xr

    from tsfm_lens.models import Lens, Run

_RECIPE = "recipe:"
# shares that --pareto tries
KEEPS = (0.1, 0.25, 0.5, 0.75)


@app.command(rich_help_panel=DAILY)
@forecasts("holdout")
def compress(
    model: Model,
    keep: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share to keep, such as 0.25.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Keep singular values above this share of a matrix's largest.",
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rank of every matrix, or of every head with --by-head."
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB|recipe:NAME",
            help=(
                "Remove heads, MLPs or layers instead, such as decoder.0.cross_attn.1,"
                " or those of a sweep's recipe; "
                "repeatable."
            ),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New folder of the checkpoint.")
    ] = None,
    method: Annotated[
        Literal["svd", "weighted", "sensitive", "measured"],
        typer.Option(
            help=(
                "svd: plain truncation; weighted: by the inputs of each matrix;"
                " sensitive: also by gradients of the "
                "forecast; measured: sensitive, with ranks by the measured effect of"
                " each matrix on other forecasts."
            )
        ),
    ] = "measured",
    of: Annotated[
        Literal["rank", "parameters"], typer.Option(help="What --keep is a share of.")
    ] = "rank",
    mlps: Annotated[bool, typer.Option("--mlps", help="Compress MLPs, too.")] = False,
    by_head: Annotated[
        bool, typer.Option("--by-head", help="Truncate every head separately.")
    ] = False,
    heal: Annotated[
        int,
        typer.Option(
            min=0, metavar="STEPS", help="Fine-tune for so many steps on the series."
        ),
    ] = 0,
    figure: Annotated[
        Path | None,
        typer.Option(
            help=(
                "File of a figure of forecasts before and after, such as"
                " forecasts.html."
            )
        ),
    ] = None,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|bundled:NAME",
            help=(
                "Series on which the rise of the error is measured; by default bundled"
                " ones of sources other than "
                "--data's. If --data has all sources, half of them, which then do not"
                " calibrate."
            ),
        ),
    ] = None,
    calibration_windows: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "Forecast origins for calibration in each series, HORIZON steps apart."
            ),
        ),
    ] = 8,
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto",
            help=(
                "Size against error for several shares and all methods; no checkpoint."
            ),
        ),
    ] = False,
    *,
    request: Request,
) -> None:
    """Write a compressed checkpoint that `tsfm-lens` opens like any other, and measure
    how forecasts change.

    Calibration uses each series up to HORIZON steps before its end. The rise of the
    error is measured on the last HORIZON steps, both of series from other sources and
    of the calibration series.
    """  # noqa: D205 - the text of --help
    choices = (
        ("--keep", keep),
        ("--epsilon", epsilon),
        ("--rank", rank),
        ("--without", without or None),
    )
    chosen = [name for name, value in choices if value is not None]
    if pareto and chosen:
        raise typer.BadParameter(
            f"--pareto tries shares of its own; leave {chosen[0]} out"
        )
    if not pareto and (len(chosen) != 1 or out is None):
        raise typer.BadParameter(
            "give one of --keep, --epsilon, --rank and --without, and --out; or"
            " --pareto"
        )
    # what follows takes minutes: all that can be refused is refused before
    if out is not None and out.exists():
        from tsfm_lens.core.errors import CheckpointError

        raise CheckpointError(
            f"{out} exists; name a new folder, since nothing is overwritten"
        )
    for file in (out, figure):
        if file is not None:
            check_writable(file.parent)
    check_patterns(name for name in without or () if not name.startswith(_RECIPE))
    has_files = any(not source.startswith("bundled:") for source in judge or ())
    with _noted_warnings(), progress_display() as bar:
        series = read_with_progress(bar, request, model)
        test_series = None
        if judge:
            # options for reading files are refused where no file is given
            reading = request.reading if has_files else {}
            test_series = read_data(judge, reading, request.horizon, holdout=True)
        from tsfm_lens.compress.measure import split_sources
        from tsfm_lens.compress.methods import calibration_run

        if test_series is None:
            # without a horizon, bundled series of any length may measure
            series, test_series = split_sources(series, request.horizon or 1)
        lens = open_with_progress(bar, model)
        run = request.run(lens, series)
        test_run = request.run(lens, test_series)
        calibration = calibration_run(run, calibration_windows)
        if pareto:
            curve = _measure_curve(calibration, test_run, bar, of, mlps)
        else:
            # refused above without one, unless there is a curve to measure
            assert out is not None
            choice = {"keep": keep, "epsilon": epsilon, "rank": rank}
            options = {"method": method, "of": of, "mlps": mlps, "by_head": by_head}
            components = _components(lens, without or ())
            runs = calibration, run, test_run
            metadata = _compress(
                runs, out, bar, choice, options, heal, components, figure
            )
    if pareto:
        _show_curve(curve, out, request.as_json)
    elif request.as_json:
        echo(json.dumps(metadata))
    else:
        _show(metadata)


@contextmanager
def _noted_warnings() -> Iterator[None]:
    """Keep warnings until the block ends, if by an error too; print them once each."""
    with catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            # warnings name the Python argument, which is an option here
            for note in dict.fromkeys(str(item.message) for item in caught):
                option = note.replace("windows=…", "--calibration-windows")
                echo(f"note: {option}", err=True)


def _compress(
    runs: tuple[Run, Run, Run],
    out: Path,
    bar: Any,
    choice: dict[str, Any],
    options: dict[str, Any],
    heal: int,
    components: list[str],
    figure: Path | None,
) -> dict[str, Any]:
    """Compress a model, write it, open it again, and compare both.

    ``runs`` are the calibration run, whose windows end before the held-out steps, and
    two on which the models are compared: of the same series, and of the test series.

    Returns:
        What the command prints, by name.
    """
    from tsfm_lens import compress as package
    from tsfm_lens import load
    from tsfm_lens.compress.measure import describe_sources
    from tsfm_lens.models.checkpoint import COMPRESSED, SUFFIX

    calibration, run, test_run = runs
    ranks: dict[str, int] | None = None
    # whether the model's own library can open the checkpoint
    native = False
    by_head = bool(options["by_head"])
    label = "find factors"
    if options["method"] == "measured":
        label = "measure the matrices"
    with stage(bar, label, None) as progress:
        if components:
            smaller, native = package.pruned(run.lens, components)
        else:
            smaller, ranks = package.compressed(
                calibration, **choice, **options, progress=progress
            )
    if heal:
        with stage(bar, "heal", heal) as progress:
            # on contexts alone, without the held-out steps of the comparison
            smaller = package.healed(smaller, run, steps=heal, progress=progress)
    with stage(bar, "write and open again"):
        if components:
            method = "components removed"
        else:
            method = options["method"]
        package.save_compressed(
            smaller, out, ranks=ranks, by_head=by_head, method=method, native=native
        )
        # what is compared below is what the folder gives, not the model in memory
        compact = load(out)
    with stage(bar, "forecast with both"):
        own_quality = package.quality(run, compact)
        quality = package.quality(test_run, compact)
    with stage(bar, "time both"):
        cost = package.cost(run.lens, compact)
    figure_path = None
    if figure is not None:
        from tsfm_lens import viz

        figure_path = str(viz.save(viz.compressed_forecasts(own_quality), figure))
    matrices = package.matrices(run.lens, mlps=options["mlps"])
    # None for removed components, {} if the model has no matrix to truncate
    ratio: Any = ranks
    if ranks:
        # the compressed model has factors in place of these matrices: shapes are those
        # of the whole one
        forms = {name: matrices[name].form(by_head=by_head) for name in ranks}
        ratio = package.compute_ratio(forms, ranks)._asdict()
    n_bytes = [
        sum(part.numel() * part.element_size() for part in lens.parameters())
        for lens in (run.lens, compact)
    ]
    # "own" is the rise on later steps of the calibration series
    rises = {
        "mase_rise": _estimate(quality, "mase_rise"),
        "wql_rise": _estimate(quality, "wql_rise"),
        "own_mase_rise": _estimate(own_quality, "mase_rise"),
    }
    costs = []
    for shape in cost["shape"].values:
        row = {name: cost[name].sel(shape=shape).values.tolist() for name in cost}
        costs.append(row | {"shape": str(shape)})
    return {
        "folder": str(out),
        "native": native,
        "figure": figure_path,
        "file_bytes": sum(
            file.stat().st_size
            for file in out.iterdir()
            if file.suffix in (SUFFIX, COMPRESSED)
        ),
        "bytes": dict(zip(("whole", "compressed"), n_bytes, strict=True)),
        "numbers": {
            "whole": package.sizes(run.lens),
            "compressed": package.sizes(compact),
        },
        "ratio": ratio,
        "cost": costs,
        "sources": describe_sources(calibration, test_run),
        "series": [len(test_run.batch), len(run.batch)],
        **rises,
        **{
            name: quality[name].values.tolist()
            for name in ("overlap", "log_perplexity")
            if name in quality
        },
    }


def _estimate(quality: xr.Dataset, name: str) -> list[float]:
    """Return an estimate and the ends of its confidence interval."""
    return [float(quality[f"{name}_{end}"]) for end in ("estimate", "low", "high")]


def _show(metadata: dict[str, Any]) -> None:
    """Print what :func:`_compress` returns."""
    from tsfm_lens.core.stats import CONFIDENCE_TEXT

    before = metadata["numbers"]["whole"]
    after = metadata["numbers"]["compressed"]
    names = {
        "all": "parameters",
        "attention": "of these in attention",
        "mlp": "of these in MLPs",
    }
    counts = [(text, before[part], after[part]) for part, text in names.items()]
    full_bytes, compressed_bytes = metadata["bytes"].values()
    counts.append(("bytes of weights", full_bytes, compressed_bytes))
    rows = [
        [text, f"{full:,}", f"{compressed:,}", _share(compressed, full)]
        for text, full, compressed in counts
    ]
    show_rows(["", "whole", "compressed", "left"], rows)
    if ratio := metadata["ratio"]:
        echo(
            f"ratio: {ratio['ranks']:.3g} of the ranks, {ratio['factors']:.3g} of the"
            f" entries as factors, {ratio['stored']:.3g} as stored"
        )
    echo(metadata["sources"])
    n_test, n_calibration = metadata["series"]
    test_series = f"{n_test} other series"
    calibration_series = f"later steps of the {n_calibration} calibration series"
    for label, name, series in (
        ("MASE", "mase_rise", test_series),
        ("WQL", "wql_rise", test_series),
        ("MASE", "own_mase_rise", calibration_series),
    ):
        mean, low, high = (100 * value for value in metadata[name])
        echo(
            f"{label} changes by {mean:+.2f} % ({low:+.2f} to {high:+.2f}; geometric"
            f" mean over {series}, {CONFIDENCE_TEXT} interval)"
        )
    if "overlap" in metadata:
        perplexity_before, perplexity_after = metadata["log_perplexity"]
        echo(
            f"top-10 tokens shared: {metadata['overlap']:.3f}; log-perplexity"
            f" {perplexity_before:.3f} before, {perplexity_after:.3f} after"
        )
    for row in metadata["cost"]:
        whole_peak, compressed_peak = row["peak_bytes"]
        echo(
            f"forward of {row['shape']} steps: {row['time_ratio']:.2f} of the time"
            f" ({row['time_ratio_low']:.2f} to {row['time_ratio_high']:.2f} over"
            f" alternating rounds; by operation count {row['operation_ratio']:.2f}),"
            f" {compressed_peak / whole_peak:.2f} of the memory"
        )
    echo(f"weights in files: {metadata['file_bytes']:,} bytes")
    echo(
        "the model's own library opens it, too"
        if metadata["native"]
        else "only tsfm_lens.load opens it"
    )
    for path in filter(None, (metadata["figure"], metadata["folder"])):
        echo(path)


def _components(lens: Lens, names: Sequence[str]) -> list[str]:
    """Return components and globs, with recipes replaced by their components."""
    from tsfm_lens.sweep.planner.recipes import read_recipe, to_entries
    from tsfm_lens.sweep.planner.variants import VariantPlanner

    components: list[str] = []
    for name in names:
        if not name.startswith(_RECIPE):
            components.append(name)
            continue
        recipe = read_recipe(name.removeprefix(_RECIPE))
        planner = VariantPlanner(lens, lens.model_id)
        for entry in to_entries(recipe, planner, scale=True):
            # random sets of heads are planned beside the recipe itself
            if entry.family == "recipes":
                components += entry.spec.components
    return components


def _share(part: int, total: int) -> str:
    # a model may have no MLP, or no attention
    if total:
        return f"{100 * part / total:.1f} %"
    return "-"


def _measure_curve(
    calibration: Run, test_run: Run, bar: Any, of: Any, mlps: bool
) -> xr.Dataset:
    """Measure size and error of the model for each share and method."""
    from tsfm_lens import compress as package

    task = bar.add_task("size against error", total=len(KEEPS) * len(package.METHODS))

    def progress(label: str) -> None:
        bar.update(task, advance=1, description=label)

    return package.pareto(
        test_run, calibration, KEEPS, of=of, mlps=mlps, progress=progress
    )


def _show_curve(curve: xr.Dataset, out: Path | None, as_json: bool) -> None:
    """Draw the curve into a folder, if one is given, and print it."""
    from tsfm_lens import viz

    figure_path = None
    if out is not None:
        figure_path = str(viz.save(viz.plot(curve), out / "size_and_error.html"))
    if as_json:
        from tsfm_lens.report.pipeline import as_plain

        echo(json.dumps({**as_plain(curve), "figure": figure_path}, allow_nan=False))
        return
    frame = curve.to_dataframe().reset_index()
    columns = ["method", "keep", "parameters", "rank_ratio", "factor_ratio"]
    columns += ["mase_rise", "mase_rise_low", "mase_rise_high", "harm_p"]
    show_rows(
        [column.replace("_", " ") for column in columns],
        frame[columns].to_numpy().tolist(),
    )
    echo(str(curve.attrs["sources"]))
    echo(str(curve.attrs["why"]))
    if figure_path is not None:
        echo(figure_path)

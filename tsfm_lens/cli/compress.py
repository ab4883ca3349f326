"""Command that writes a smaller model and compares its forecasts with the whole
model's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from warnings import catch_warnings

import typer

from tsfm_lens.cli.common import (
    Model,
    app,
    open_shown,
    progress_display,
    series_shown,
    show_rows,
    stage,
)
from tsfm_lens.cli.reading import Request, forecasts, read_data
from tsfm_lens.core.console import echo
from tsfm_lens.core.io import refuse_unwritable

if TYPE_CHECKING:
    import xarray as xr

    from tsfm_lens.models import Lens, Run

_RECIPE = "recipe:"
KEEPS = (0.1, 0.25, 0.5, 0.75)


@app.command()
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
    """
    from tsfm_lens.compress.measure import split_sources
    from tsfm_lens.compress.methods import calibration_run

    choices = (
        ("--keep", keep),
        ("--epsilon", epsilon),
        ("--rank", rank),
        ("--without", without or None),
    )
    numbers = [name for name, value in choices if value is not None]
    if pareto and numbers:
        raise typer.BadParameter(
            f"--pareto tries shares of its own; leave {numbers[0]} out"
        )
    if not pareto and (len(numbers) != 1 or out is None):
        raise typer.BadParameter(
            "give one of --keep, --epsilon, --rank and --without, and --out; or"
            " --pareto"
        )
    if out is not None and out.exists():
        from tsfm_lens.core.errors import CheckpointError

        raise CheckpointError(
            f"{out} exists; name a new folder, since nothing is overwritten"
        )
    for file in (out, figure):
        if file is not None:
            refuse_unwritable(file.parent)
    files = any(not source.startswith("bundled:") for source in judge or ())
    with progress_display() as bar, catch_warnings(record=True) as caught:
        series = series_shown(bar, request, model)
        if judge:
            rest = read_data(
                judge, request.reading if files else {}, request.horizon, holdout=True
            )
        else:
            series, rest = split_sources(series, request.horizon or 1)
        lens = open_shown(bar, model)
        run, other = request.run(lens, series), request.run(lens, rest)
        calibration = calibration_run(run, calibration_windows)
        if pareto:
            curve = _curve(calibration, other, bar, of, mlps)
        else:
            assert out is not None
            choice = {"keep": keep, "epsilon": epsilon, "rank": rank}
            options = {"method": method, "of": of, "mlps": mlps, "by_head": by_head}
            components = _components(lens, without or ())
            metadata = _compress(
                (calibration, run, other),
                out,
                bar,
                choice,
                options,
                heal,
                components,
                figure,
            )
    for note in dict.fromkeys(str(item.message) for item in caught):
        echo(f"note: {note.replace('windows=…', '--calibration-windows')}", err=True)
    if pareto:
        _show_curve(curve, out, request.as_json)
    elif request.as_json:
        echo(json.dumps(metadata))
    else:
        _show(metadata)


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
    """Compress by a run that calibrates, write, open the written checkpoint, and
    compare models on two others.
    """
    from tsfm_lens import compress as package
    from tsfm_lens import load
    from tsfm_lens.compress.measure import describe_sources
    from tsfm_lens.models.checkpoint import COMPRESSED, SUFFIX

    calibration, run, other = runs
    ranks: dict[str, int] | None = None
    native = False
    by_head = bool(options["by_head"])
    with stage(
        bar,
        "measure the matrices" if options["method"] == "measured" else "find factors",
        None,
    ) as progress:
        if components:
            smaller, native = package.pruned(run.lens, components)
        else:
            smaller, ranks = package.compressed(
                calibration, **choice, **options, progress=progress
            )
    if heal:
        with stage(bar, "heal", heal) as progress:
            # contexts alone: the ends by which it is judged stay unseen
            smaller = package.healed(smaller, run, steps=heal, progress=progress)
    with stage(bar, "write and open again"):
        if components:
            method = "components removed"
        else:
            method = options["method"]
        package.save_compressed(
            smaller, out, ranks=ranks, by_head=by_head, method=method, native=native
        )
        compact = load(out)
    with stage(bar, "forecast with both"):
        own, quality = (package.quality(item, compact) for item in (run, other))
    with stage(bar, "time both"):
        cost = package.cost(run.lens, compact)
    page = None
    if figure is not None:
        from tsfm_lens import viz

        page = str(viz.save(viz.compressed_forecasts(own), figure))
    matrices = package.matrices(run.lens, mlps=options["mlps"])
    ratio = (
        ranks
        and package.compute_ratio(
            {name: matrices[name].form(by_head=by_head) for name in ranks}, ranks
        )._asdict()
    )
    n_bytes = [
        sum(part.numel() * part.element_size() for part in item.parameters())
        for item in (run.lens, compact)
    ]
    return {
        "folder": str(out),
        "native": native,
        "figure": page,
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
        "cost": [
            {name: cost[name].sel(shape=shape).values.tolist() for name in cost}
            | {"shape": str(shape)}
            for shape in cost["shape"].values
        ],
        "sources": describe_sources(calibration, other),
        "series": [len(other.batch), len(run.batch)],
        **{
            name: [
                float(item[f"{name.removeprefix('own_')}_{end}"])
                for end in ("estimate", "low", "high")
            ]
            for name, item in (
                ("mase_rise", quality),
                ("wql_rise", quality),
                ("own_mase_rise", own),
            )
        },
        **{
            name: quality[name].values.tolist()
            for name in ("overlap", "log_perplexity")
            if name in quality
        },
    }


def _show(facts: dict[str, Any]) -> None:
    before = facts["numbers"]["whole"]
    after = facts["numbers"]["compressed"]
    names = {
        "all": "parameters",
        "attention": "of these in attention",
        "mlp": "of these in MLPs",
    }
    rows = [
        [text, f"{before[of]:,}", f"{after[of]:,}", _share(after[of], before[of])]
        for of, text in names.items()
    ]
    full, compressed = facts["bytes"].values()
    rows.append(
        ["bytes of weights", f"{full:,}", f"{compressed:,}", _share(compressed, full)]
    )
    show_rows(["", "whole", "compressed", "left"], rows)
    if ratio := facts["ratio"]:
        echo(
            f"ratio: {ratio['ranks']:.3g} of the ranks, {ratio['factors']:.3g} of the"
            f" entries as factors, {ratio['stored']:.3g} as stored"
        )
    echo(facts["sources"])
    rest, own = facts["series"]
    over_others = f"{rest} other series"
    over_own = f"later steps of the {own} calibration series"
    for name, over in (
        ("mase_rise", over_others),
        ("wql_rise", over_others),
        ("own_mase_rise", over_own),
    ):
        label, (mean, low, high) = (
            name.split("_")[-2].upper(),
            (100 * value for value in facts[name]),
        )
        echo(
            f"{label} changes by {mean:+.2f} % ({low:+.2f} to {high:+.2f}; geometric"
            f" mean over {over}, 95 % interval)"
        )
    if "overlap" in facts:
        full, other = facts["log_perplexity"]
        echo(
            f"top-10 tokens shared: {facts['overlap']:.3f}; log-perplexity {full:.3f}"
            f" before, {other:.3f} after"
        )
    for row in facts["cost"]:
        peak = row["peak_bytes"]
        echo(
            f"forward of {row['shape']} steps: {row['time_ratio']:.2f} of the time"
            f" ({row['time_ratio_low']:.2f} to {row['time_ratio_high']:.2f} over"
            f" alternating rounds; by operation count {row['operation_ratio']:.2f}),"
            f" {peak[1] / peak[0]:.2f} of the memory"
        )
    echo(f"weights in files: {facts['file_bytes']:,} bytes")
    echo(
        "the model's own library opens it, too"
        if facts["native"]
        else "only tsfm_lens.load opens it"
    )
    for path in filter(None, (facts["figure"], facts["folder"])):
        echo(path)


def _components(lens: Lens, names: Sequence[str]) -> list[str]:
    """Return components and globs, with the components of a recipe in the place of its
    name.
    """
    from tsfm_lens.sweep.planner.recipes import read_recipe, to_entries
    from tsfm_lens.sweep.planner.variants import VariantPlanner

    components: list[str] = []
    for name in names:
        if not name.startswith(_RECIPE):
            components.append(name)
            continue
        recipe = read_recipe(name.removeprefix(_RECIPE))
        for entry in to_entries(
            recipe, VariantPlanner(lens, lens.model_id), scale=True
        ):
            components += entry.spec.components if entry.family == "recipes" else ()
    return components


def _share(part: int, whole: int) -> str:
    if whole:
        return f"{100 * part / whole:.1f} %"
    return "-"


def _curve(calibration: Run, run: Run, bar: Any, of: Any, mlps: bool) -> xr.Dataset:
    from tsfm_lens import compress as package

    task = bar.add_task("size against error", total=len(KEEPS) * len(package.METHODS))
    how = {
        "of": of,
        "mlps": mlps,
        "progress": lambda what: bar.update(task, advance=1, description=what),
    }
    return package.pareto(run, calibration, KEEPS, **how)


def _show_curve(curve: xr.Dataset, out: Path | None, as_json: bool) -> None:
    from tsfm_lens import viz

    if out is None:
        page = None
    else:
        page = viz.save(viz.plot(curve), out / "size_and_error.html")
    if as_json:
        from tsfm_lens.report.pipeline import as_plain

        echo(
            json.dumps(
                {**as_plain(curve), "figure": None if page is None else str(page)},
                allow_nan=False,
            )
        )
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
    if page is not None:
        echo(str(page))

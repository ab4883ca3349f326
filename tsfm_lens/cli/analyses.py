"""Commands that run a model on series: report, forecast, ablate, explain and others.

Each is one call into the library between two common steps: :class:`Request` has the
series and the settings of the forecast, and ``show_…`` prints the results. Nothing is
computed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

# commands import the library inside their functions: --help and the completion of names
# must load neither torch nor plotly
from tsfm_lens.cli import completing
from tsfm_lens.cli.common import (
    DAILY,
    MODEL_HELP,
    Model,
    Sections,
    app,
    emit,
    make_step_progress,
    open_with_progress,
    progress_display,
    read_with_progress,
    show_page,
    show_rows,
    stage,
    write_data,
)
from tsfm_lens.cli.reading import (
    DataIfAny,
    Request,
    check_item,
    checked_kinds,
    forecasts,
    read_data,
)
from tsfm_lens.core.choices import check_explanation, check_patterns, checked_how
from tsfm_lens.core.console import echo
from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.io import find_page

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens


@app.command(rich_help_panel=DAILY)
@forecasts()
def report(
    model: Model,
    out: Annotated[Path, typer.Option(help="Folder for index.html.")] = Path("report"),
    item: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Item for the chapters of one; the first by default."
        ),
    ] = "",
    sections: Sections = None,
    *,
    request: Request,
) -> None:
    """Analyse a model on series and write one HTML file that opens offline."""
    kinds = checked_kinds(model, sections, request.samples)
    # a folder that cannot be written is refused before anything runs
    find_page(out)
    with progress_display() as bar:
        series = read_with_progress(bar, request, model)
        check_item(series, item)
        lens = open_with_progress(bar, model)
        missing: dict[str, str] = {}
        from tsfm_lens.report import pipeline

        if kinds is None:
            kinds = tuple(pipeline.select_defined(lens, pipeline.SECTIONS, missing))
        progress = make_step_progress(bar, lens, kinds)
        run = pipeline.with_item_first(request.run(lens, series), item or 0).compared()
        results = pipeline.analyse(
            run, sections=kinds, progress=progress, left_out=missing
        )
        title = pipeline.make_heading(model, series)
        path = pipeline.write_page(
            run, results, out, title, request.data, progress, missing
        )
    show_page(path, missing, results, request.as_json)


@app.command(rich_help_panel=DAILY)
@forecasts("windows", "twins", holdout=False)
def forecast(
    model: Model,
    quantile: Annotated[
        list[float] | None, typer.Option("--quantiles", "-q", help="Level; repeatable.")
    ] = None,
    as_csv: Annotated[
        bool,
        typer.Option(
            "--csv", help="CSV to stdout, one row per series and step; > FILE keeps it."
        ),
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE.html", help="Page with the forecast of each series."
        ),
    ] = None,
    with_context: Annotated[
        bool,
        typer.Option("--context", help="Write the context of each series in --json."),
    ] = False,
    *,
    request: Request,
) -> None:
    """Forecast beyond the end of each series, in data units; covariates are shown to
    the model and not listed.

    --holdout forecasts the last steps of each series instead, and lists their truth.
    """  # noqa: D205 - the text of --help
    if request.as_json and as_csv:
        raise typer.BadParameter("choose one of --json and --csv")
    if with_context and not request.as_json:
        raise typer.BadParameter("--context goes with --json", param_hint="--context")
    if page is not None and page.suffix.lower() != ".html":
        hint = "`tsfm-lens figure forecast_fan` draws one series as svg, pdf or png"
        raise typer.BadParameter(
            f"{str(page)!r} does not end in .html; {hint}", param_hint="--plot"
        )
    from tsfm_lens.models.arguments import DECILES, checked_request

    sampling: dict[str, Any] = {"num_samples": request.samples, "seed": request.seed}
    # bad arguments are refused before a model is opened
    # the default horizon is the model's, which is not open yet; any valid one will do
    checked_request(
        request.horizon or 1, quantile or DECILES, request.samples, request.seed
    )
    if page is not None:
        find_page(page)
    with progress_display() as bar:
        series = read_with_progress(bar, request, model)
        truth = None
        lens = open_with_progress(bar, model)
        with stage(bar, "forecast", None) as progress:
            run = request.run(lens, series)
            # with a holdout, the run has shortened the series to their contexts
            if run.truth is not None:
                series = run.batch
                truth = run.truth[run.batch.is_target]
            result = lens.forecast(
                series,
                run.horizon,
                quantiles=quantile or DECILES,
                **sampling,
                progress=progress,
            ).targets()
    if page is not None:
        from tsfm_lens.report import pipeline

        data = result.to_dataset(truth)
        metadata = pipeline.provenance(run, request.data)
        title = pipeline.make_heading(model, series)
        remarks = pipeline.list_remarks(run.batch)
        pipeline.build_report(
            {"forecast": data}, page, title=title, provenance=metadata, notes=remarks
        )
        echo(str(page), err=True)
    if request.as_json:
        left_out = ["sample"]
        if not with_context:
            # the caller has the series; only what follows it is new
            left_out += ["context", "context_timestamp", "time"]
        emit(result.to_dataset(truth).drop_vars(left_out, errors="ignore"))
        return
    frame = result.to_frame()
    if truth is not None:
        frame.insert(list(frame.columns).index("mean"), "truth", truth.ravel())
    if (
        result.samples is None
        and 0.5 in result.levels
        and (frame["mean"] == frame["0.5"]).all()
    ):
        # the library gives no mean, so that the median stands in its column
        frame = frame.drop(columns="mean")
    if "timestamp" in frame:
        timestamps = frame["timestamp"]
        # of days or longer steps, the time of day would be 00:00:00 in every row
        if (timestamps == timestamps.dt.normalize()).all():
            import pandas as pd

            # most series share their dates, and each is written once
            index, dates = pd.factorize(timestamps)
            texts = pd.DatetimeIndex(dates).strftime("%Y-%m-%d")
            frame["timestamp"] = texts.to_numpy()[index]
    if as_csv:
        from tsfm_lens.core.spreadsheets import to_csv

        write_data(to_csv(frame))
        return
    show_rows(list(frame.columns), frame.to_numpy().tolist(), digits=6)


@app.command(rich_help_panel=DAILY)
@forecasts()
def ablate(
    model: Model,
    component: Annotated[
        list[str] | None,
        typer.Option(
            "--components", "-c", metavar="GLOB", help="Name or glob; all by default."
        ),
    ] = None,
    how: Annotated[
        str,
        typer.Option(
            help="Replacement of the component: zero, mean, resample, noise, …"
        ),
    ] = "zero",
    reference: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|bundled:NAME",
            help="Other series, whose activations --how mean and resample use.",
            autocompletion=completing.data,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    *,
    request: Request,
) -> None:
    """Ablate components one at a time and measure how the forecast changes."""
    check_patterns(component or ())
    if checked_how(how) and not reference:
        # the mean of a series alone, at its one decoder token, is what stands there
        # already
        raise typer.BadParameter(
            f"--how {how} takes activations of other series", param_hint="--reference"
        )
    with progress_display() as bar:
        series = read_with_progress(bar, request, model)
        reference_series = None
        if reference:
            reference_series = read_data(reference, request.reading)
        run = request.run(open_with_progress(bar, model), series).compared()
        from tsfm_lens.probes import ablation_effects

        options: dict[str, Any] = {
            "how": how,
            "reference": reference_series if checked_how(how) else None,
        }
        with stage(bar, "ablation", None) as progress:
            result = ablation_effects(
                run, components=component or None, progress=progress, **options
            )
    if request.as_json:
        emit(result)
        return
    import numpy as np

    from tsfm_lens.viz.findings import read_estimate

    # a single step has no ranks to compare
    first = "mean_shift"
    if "spearman_distance" in result:
        first = "spearman_distance"
    columns = [name for name in (first, "mase_change", "mae_change") if name in result]
    # medians over series, of which the first column decides the order of the rows
    sizes = [result[f"{column}_size"].values for column in columns]
    # what has no size comes last
    order = np.argsort(-np.nan_to_num(sizes[0], nan=-np.inf), kind="stable")[:top]
    names = [str(name) for name in result["component"].values]
    effect = read_estimate(result, first, "component")
    rows = [
        [
            names[i],
            *(float(size[i]) for size in sizes),
            int(effect.acts[i]),
            "yes" if effect.significant[i] else "no",
        ]
        for i in order
    ]
    show_rows(["component", *columns, "acts", "significant"], rows)
    echo(f"Medians over {effect.over}; acts, significant: of {first}.", err=True)
    for sentence in effect.standing(names, "components"):
        echo(sentence, err=True)


@app.command(rich_help_panel=DAILY)
@forecasts("windows", "twins")
def compare(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE", help=MODEL_HELP, autocompletion=completing.models
        ),
    ],
    tuned: Annotated[
        str,
        typer.Argument(
            metavar="TUNED",
            help="The fine-tuned model.",
            autocompletion=completing.models,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for a page with the figure (index.html)."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    *,
    request: Request,
) -> None:
    """Compare a fine-tuned model with its base: whose weights differ, and what setting
    each back does.
    """  # noqa: D205 - the text of --help
    if out is not None:
        find_page(out)
    with progress_display() as bar:
        series = read_with_progress(bar, request, base, tuned)
        first = open_with_progress(bar, base)
        second = open_with_progress(bar, tuned)
        run = request.run(second, series)
        from tsfm_lens.probes import weight_effects

        with stage(bar, "setting weights back", None) as progress:
            result = weight_effects(first, second, run, progress=progress)
    for lens in (first, second):
        names = ", ".join(file.name for file in lens.files)
        echo(f"{lens.model_id}: read from {names}", err=True)
    if out is not None:
        from tsfm_lens.report import pipeline
        from tsfm_lens.viz.weight_effects import name_change

        page = pipeline.write_page(
            run,
            {"weight_effects": result},
            out,
            name_change(result),
            request.data,
            None,
            {},
            lead=["weight_effects"],
        )
        echo(str(page), err=True)
    if request.as_json:
        emit(result)
        return
    from tsfm_lens.viz.weight_effects import read_weight_effects

    for sentence in read_weight_effects(result):
        echo(sentence, err=True)
    columns = [
        name
        for name in ("relative_norm", "rank", "share_size", "error_change_size")
        if name in result
    ]
    components = [str(name) for name in result["component"].values[:top]]
    if components:
        rows = [
            [name, *(float(result[column][i]) for column in columns)]
            for i, name in enumerate(components)
        ]
        show_rows(["component", *columns], rows)


@app.command(rich_help_panel=DAILY)
@forecasts()
def attribute(
    model: Model,
    top: Annotated[int, typer.Option(min=1, help="Rows of the table.")] = 20,
    *,
    request: Request,
) -> None:
    """Split the forecast into contributions of components."""
    with progress_display() as bar:
        series = read_with_progress(bar, request, model)
        run = request.run(open_with_progress(bar, model), series).compared()
        from tsfm_lens.probes import attribution

        with stage(bar, "attribution", None):
            result = attribution(run)
    if request.as_json:
        emit(result)
        return
    import numpy as np

    from tsfm_lens.viz.select import varying

    sizes = result["mean_absolute"].isel(series=varying(result)).mean("series").values
    order = np.argsort(-sizes, kind="stable")[:top]
    names = [str(name) for name in result["component"].values]
    header = f"{result['decomposition'].item()} ({result['unit'].item()})"
    echo("Mean size of each component's contribution, over series and steps.", err=True)
    show_rows(
        ["component", header],
        [[names[i], float(sizes[i])] for i in order],
    )


@app.command(rich_help_panel=DAILY)
@forecasts()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]", help=MODEL_HELP, autocompletion=completing.models
        ),
    ] = "bolt-nano",
    data: DataIfAny = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="First port to try.")
    ] = 8866,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    *,
    request: Request,
) -> None:
    """Open a page on this machine: drop a file, choose a model, see forecast, heads,
    ablations and explanations.

    No data leave the machine. Ctrl-C ends it and leaves nothing running.
    """  # noqa: D205 - the text of --help
    request = replace(request, data=data or ["bundled:co2"])
    with progress_display() as bar:
        # a file that cannot be read is refused here, and not in the browser; the page
        # reads the series itself
        read_with_progress(bar, request, model)
    options = {name: getattr(request, name) for name in ("horizon", "holdout", "seed")}
    options["num_samples"] = request.samples

    def announce(address: str) -> None:
        if request.as_json:
            echo(json.dumps({"page": address}))
        else:
            echo(f"{address}\nCtrl-C ends it.")

    from tsfm_lens.report.serve import serve as open_page

    open_page(
        model,
        request.data,
        reading=request.reading,
        options=options,
        port=port,
        browser=browser,
        started=announce,
    )


_MAX_NAMES = 4  # items that a note names


def _change(text: str, names: Collection[str]) -> tuple[str, str]:
    """Split "temperature=+5" into the series and its change.

    "promo==1" and "promo=1" set a value. ``names`` are those of the series, which may
    have an equals sign themselves.

    Returns:
        Name and change.
    """
    signs = [
        match.start()
        for match in re.finditer("=", text)
        if 0 < match.start() < len(text) - 1
    ]
    if not signs:
        raise typer.BadParameter(
            f"{text!r} names no change, expected such as temperature=+5",
            param_hint="--set",
        )
    # the last sign first: a name that has a sign itself is longer than its beginning
    sign = next((sign for sign in reversed(signs) if text[:sign] in names), None)
    if sign is None:
        raise unknown_name("series", text[: signs[0]], names)
    # of "promo==1" the second sign is the operator, which "promo=1" leaves out
    change = text[sign + 1 :]
    if change[0] not in "+-*/=":
        change = f"={change}"
    return text[:sign], change


def _check_changes(
    series: SeriesBatch, edits: Mapping[str, str], item: int | str
) -> None:
    """Refuse changes that nothing can be forecast of."""
    from tsfm_lens.data.batch import item_rows
    from tsfm_lens.data.changes import edited

    for name, edit in edits.items():
        for row in item_rows(series, item):
            if name in (series.variates[row], series.ids[row]):
                edited(series.values[row], edit, name, series.categories[row])


def _count_later(
    series: SeriesBatch, earlier: SeriesBatch, item: int | str, held_out: int | None
) -> int:
    """Return by how many steps an item's forecast starts later than an earlier one.

    Forecasts that share no step are refused. ``held_out`` are the steps that both hold
    out, which bound the earlier forecast; None if it goes on beyond its data.
    """
    from tsfm_lens.data.batch import item_rows
    from tsfm_lens.data.changes import check_shared, later_by

    rows = item_rows(series, item)
    before = earlier.select(item_rows(earlier, series.groups[rows[0]]))
    ahead = later_by(before, series.select(rows))
    known = earlier.known_steps if held_out is None else None
    check_shared(ahead, held_out, known)
    return ahead


def _longest_horizon(lens: Lens, series: SeriesBatch, horizon: int) -> int:
    """Return the horizon, or how far covariates are known or a model can go."""
    bounds = [horizon]
    if series.known_steps is not None:
        bounds.append(series.known_steps)
    if lens.adapter.rollout == "single":
        bounds.append(lens.adapter.longest_pass)
    return min(bounds)


def _step(text: str) -> int | str | None:
    """Read a step from the forecast start, or leave a date as it is."""
    # digits alone are a step, even where they could be a year
    if re.fullmatch(r"[-+]?\d+", text):
        return int(text)
    return text or None


@app.command(rich_help_panel=DAILY)
@forecasts()
def explain(
    model: Model,
    out: Annotated[
        Path, typer.Option(help="Folder for index.html, explanation.json, and numbers.")
    ] = Path("explanation"),
    item: Annotated[
        str, typer.Option(metavar="NAME", help="Item to explain; the first by default.")
    ] = "",
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="shapley, occlusion, …; see explain.input_attribution."
        ),
    ] = "",
    reference: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Values of masked steps: mean, missing, seasonal naive, …",
        ),
    ] = "mean",
    parts: Annotated[
        str,
        typer.Option(
            metavar="N|adaptive|components",
            help="Stretches of the past, close where they matter, or its trend, seasons"
            " and rest.",
        ),
    ] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=CHANGE",
            help="What if: temperature=+5, price=*1.1, promo==1, …",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="STEP",
            help=(
                "First step that --set changes, or a date; 0, the forecast start, by"
                " default."
            ),
        ),
    ] = "",
    stop: Annotated[
        str,
        typer.Option(
            "--until",
            metavar="STEP",
            help=(
                "The step after the last that changes, or a date; by default the"
                " series' end."
            ),
        ),
    ] = "",
    since: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The same series as an earlier forecast knew them: why did it change?",
        ),
    ] = "",
    sections: Sections = None,
    pdf: Annotated[
        bool,
        typer.Option("--pdf", help="Print the page to index.pdf too; needs Chromium."),
    ] = False,
    holdout: Annotated[
        bool | None,
        typer.Option(
            "--holdout/--no-holdout",
            help=(
                "Hold out the last HORIZON steps as the truth; by default where known"
                " covariates end with the target."
            ),
        ),
    ] = None,
    *,
    request: Request,
) -> None:
    """Explain a forecast by its past and covariates and the heads they act through, and
    test the explanation.
    """  # noqa: D205 - the text of --help
    units: int | str | None = parts or None
    if parts.isdigit():
        units = int(parts)
    # words that nothing knows are refused before a model is opened
    check_explanation(method or None, reference, units)
    # these sections are made of what the options give
    made = {"what_if": bool(changes), "forecast_change": bool(since)}
    answers = [kind for kind, is_asked in made.items() if is_asked]
    kinds = checked_kinds(model, sections, request.samples, answers)
    find_page(out)
    if (start or stop) and not changes:
        raise typer.BadParameter(
            "--from and --until say which steps --set changes; give --set"
            " NAME=CHANGE too"
        )
    with progress_display() as bar:
        series = read_with_progress(bar, request, model)
        check_item(series, item)
        is_held_out = holdout
        if holdout is None:
            # where known covariates end with the target, its end must be held out
            ahead = [len(future) for future in series.futures if future is not None]
            is_held_out = bool(ahead) and not any(ahead)
        names = [name for name in (*series.variates, *series.ids) if name]
        edits = dict(_change(text, names) for text in changes or [])
        earlier = None
        if since:
            held_out = request.horizon if is_held_out else None
            earlier = read_data([since], request.reading, held_out, is_held_out)
            later = _count_later(series, earlier, item or 0, held_out)
        _check_changes(series, edits, item or 0)
        lens = open_with_progress(bar, model)
        missing: dict[str, str] = {}
        from tsfm_lens.report import explanation, pipeline
        from tsfm_lens.viz.input_effects import read_items

        selection = explanation.SECTIONS if kinds is None else kinds
        selection = explanation.select_sections(series, selection)
        # () where --sections names what --set and --since make, alone
        progress = None
        if selection:
            selection = tuple(pipeline.select_defined(lens, selection, missing))
            progress = make_step_progress(bar, lens, selection)
        kinds = selection
        # the same settings for both runs: what an earlier forecast is compared with
        # must differ in its series alone
        settings = replace(request, holdout=is_held_out)
        run = settings.run(lens, series)
        options: dict[str, Any] = {
            "item": item or 0,
            "method": method or None,
            "reference": reference,
            "parts": units,
            "changes": edits,
            "start": _step(start),
            "stop": _step(stop),
        }
        if earlier is not None:
            if not is_held_out:
                steps = _longest_horizon(lens, earlier, run.horizon + later)
                settings = replace(settings, horizon=steps)
            options["since"] = settings.run(lens, earlier)
        results = explanation.explain(
            run,
            out,
            sections=kinds,
            **options,
            sources=request.data,
            pdf=pdf,
            progress=progress,
            left_out=missing,
        )
    items = list(dict.fromkeys(series.groups))
    if not item and len(items) > 1:
        other_items = ", ".join(items[1:_MAX_NAMES])
        if len(items) > _MAX_NAMES:
            other_items += ", …"
        echo(
            f"note: explaining {items[0]}, the first of {len(items)}; choose another"
            f" with --item: {other_items}",
            err=True,
        )
    if is_held_out and holdout is None:
        echo(
            f"note: no covariate is known beyond the target, so its last {run.horizon}"
            " steps are held out",
            err=True,
        )
    metadata = results.summary()
    if (metadata["verdict"] or metadata["answers"]) and not request.as_json:
        lines = [*metadata["answers"], metadata["headline"], *metadata["reasons"][:2]]
        if metadata["undecided"]:
            segments = ", ".join(metadata["undecided"])
            lines.append(f"Leave out, as not told from zero: {segments}.")
        # with --item, the answer is on that one alone
        if "input_effects" in results and not item:
            lines.append("All items, by the same few stretches of each:")
            lines += read_items(results["input_effects"])
        echo("\n".join(lines), err=True)
    show_page(out / "index.html", missing, results, request.as_json, **metadata)

"""Commands that list models, hook points, series, measurements and the installation.

Two of them run a model: ``hooks`` once, for the shapes of its activations, and ``doctor
MODEL``, which compares the lens with the native library (the conformance oracles).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsfm_lens.cli.common import (
    DAILY,
    MODEL_HELP,
    Model,
    app,
    open_lens,
    open_with_progress,
    progress_display,
    show,
    show_rows,
    stage,
)
from tsfm_lens.cli.reading import AsJson, check_sampling
from tsfm_lens.core.console import echo

if TYPE_CHECKING:
    from tsfm_lens.core.registry import Measurement


@app.command(rich_help_panel=DAILY)
def models(as_json: AsJson = False) -> None:
    """List architectures with their published sizes, and the embedded checkpoints."""
    from tsfm_lens.core.embedded import checkpoint_names
    from tsfm_lens.models.locating import known_architectures

    known = known_architectures()
    entries = [known[name] for name in sorted(known)]
    if as_json:
        fields = (
            "name",
            "title",
            "readout",
            "published",
            "extra",
            "covariates",
            "notes",
        )
        records = [
            {field: getattr(entry, field) for field in fields} for entry in entries
        ]
        echo(
            json.dumps({"architectures": records, "embedded": list(checkpoint_names())})
        )
        return
    rows: list[list[object]] = [[name, "embedded", name] for name in checkpoint_names()]
    rows += [
        [entry.title, size, hub_id]
        for entry in entries
        for size, hub_id in entry.published.items()
    ]
    show_rows(["model", "size", "MODEL"], rows)
    echo()
    details = []
    for entry in entries:
        extra = ""
        if entry.extra:
            extra = f"[{entry.extra}]"
        if not entry.importable:
            extra = f"{extra} (not installed)"
        details.append([entry.title, extra, ", ".join(entry.covariates), entry.notes])
    show_rows(["model", "extra", "covariates", "note"], details)
    echo(
        "MODEL may also be a local folder. In Python, load() takes a pipeline or model"
        " of these libraries, too, and a model with a wiring of your own. `tsfm-lens"
        " doctor` says how to install an extra."
    )


@app.command(rich_help_panel=DAILY)
def hooks(
    model: Model,
    pattern: Annotated[
        str,
        typer.Option(
            "--filter", "-f", metavar="GLOB", help="* within a part, ** across."
        ),
    ] = "**",
    components: Annotated[
        bool,
        typer.Option(
            "--components",
            help="The layers, attentions, heads and MLPs that can be ablated instead.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List hook points with their axes, and the shapes that one short run gives
    them.
    """  # noqa: D205 - the text of --help
    check_sampling(model, None)
    if components:
        with progress_display() as bar:
            lens = open_with_progress(bar, model)
        # the default pattern is of hook points; components are all named by no pattern
        patterns = [] if pattern == "**" else [pattern]
        names = [str(component) for component in lens.components(*patterns)]
        echo(json.dumps(names) if as_json else "\n".join(names))
        return
    from tsfm_lens.report.pipeline import hook_shapes

    with progress_display() as bar:
        points = hook_shapes(open_with_progress(bar, model), pattern)
    if as_json:
        records = [
            {"name": name, "axes": axes.split(), "shape": list(shape)}
            for name, axes, shape in points
        ]
        echo(json.dumps(records))
        return
    rows = [[name, axes, " × ".join(map(str, shape))] for name, axes, shape in points]
    show_rows(["hook point", "axes", "shape"], rows)


@app.command(rich_help_panel=DAILY)
def data(as_json: AsJson = False) -> None:
    """List the bundled real series."""
    from dataclasses import asdict

    from tsfm_lens.data import bundled_info, bundled_names

    infos = [bundled_info(name) for name in bundled_names()]
    if as_json:
        echo(json.dumps([asdict(info) for info in infos]))
        return
    header = ["name", "title", "field", "freq", "length", "unit", "licence"]
    rows = [[getattr(info, name) for name in header] for info in infos]
    show_rows([name.replace("length", "steps") for name in header], rows)


@app.command(rich_help_panel=DAILY)
def measurements(as_json: AsJson = False) -> None:
    """List the measurements: the kind of each result and its figures; with --json its
    probe and models, too.
    """  # noqa: D205 - the text of --help
    records = list_measurement_fields()
    if as_json:
        echo(json.dumps(records))
        return
    rows = [
        [record["kind"], record["summary"], " ".join(record["figures"])]
        for record in records
    ]
    show_rows(["kind", "what is measured", "figure"], rows)


def list_measurement_fields() -> list[dict[str, Any]]:
    """List every measurement as plain values, the records of ``--json``.

    "probes" holds the name of the function that computes the measurement; it is empty
    for a result that no function of the package gives.

    Returns:
        A record of each measurement.
    """
    from tsfm_lens.core.registry import measurements

    return [
        {
            "kind": measurement.kind,
            "theme": measurement.theme,
            "summary": measurement.summary,
            "probes": [measurement.function_name] if measurement.function_name else [],
            # one function may draw several figures, each with its own options
            "figures": list(
                dict.fromkeys(figure.name for figure in measurement.figures)
            ),
            "source": measurement.source,
            "paper": list(measurement.paper),
            "models": _name_models(measurement),
        }
        for measurement in measurements().values()
    ]


def _name_models(measurement: Measurement) -> str:
    """Say in words which models a measurement can be made on.

    A measurement without a function comes from a theory, a training run or a sweep,
    which its theme tells.

    Returns:
        The text.
    """
    from tsfm_lens.core.needs import NEEDS
    from tsfm_lens.models.architecture import models_meeting

    if measurement.of_run:
        if not measurement.needs:
            return "every model"
        return models_meeting(NEEDS[measurement.needs])
    if measurement.function is not None:
        return "several models"
    by_theme = {"Theory": "no model", "Training": "models trained for it"}
    return by_theme.get(measurement.theme, "sweeps")


@app.command(rich_help_panel=DAILY)
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help=f"{MODEL_HELP} Check it too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what is installed and what is missing; with MODEL, run the conformance
    oracles on it.
    """  # noqa: D205 - the text of --help
    from tsfm_lens.cli.doctor import examine, plain_oracles, render

    if model is not None:
        # an unknown name is refused before the installation is shown
        check_sampling(model, None)
    installation = examine()
    # the tables appear at once, and not when the oracles are done
    if not as_json:
        for table in render(installation):
            show(table)
    results = None
    if model is not None:
        from tsfm_lens.testing import check_lens

        with progress_display() as bar, stage(bar, "conformance"):
            # the check that opening a lens runs would raise for a fault, and the table
            # is there to show it
            results = check_lens(open_lens(model, check=False))
    if as_json:
        conformance = None
        if results is not None:
            conformance = {"model": model, "oracles": plain_oracles(results)}
        facts = {**installation, "conformance": conformance}
        echo(json.dumps(facts, allow_nan=False))
    elif results is not None:
        from tsfm_lens.testing import oracle_table

        show(oracle_table(results, f"Conformance of {model}"))
    if results and not all(result.passed for result in results):
        raise typer.Exit(1)

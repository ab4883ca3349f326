"""The catalogue is true: what it declares can be computed, drawn, tabulated and read, and everything else follows."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

from specimens.marks import unexplained
from tsfm_lens import catalogue, explain, probes, viz
from tsfm_lens.catalogue import Figure, Measurement, Work, add, find, measurements, on_all, registry, work_on
from tsfm_lens.cli import app
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.report import build
from tsfm_lens.report.build import build_report, plates_of
from tsfm_lens.testing import assert_close

ROOT = Path(__file__).parents[2]
OF_RUNS = [kind for kind, each in measurements().items() if each.compute is not None]
# what writes figures to files, and helpers of helpers
WRITERS = {"for_print", "save", "side_by_side"}


@pytest.mark.parametrize("kind", OF_RUNS)
def test_every_measurement_is_computed_drawn_tabulated_and_read(
    kind: str, work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement, lens = find(kind), work.run.lens
    if measurement.needs is not None and not measurement.needs.met(lens):
        with pytest.raises(InputError, match=lens.model_id):
            work.result(kind)
        assert measurement.compute is not None
        # the probe itself says so, too
        with pytest.raises(InputError):
            measurement.compute.call(work, {})
        return
    result = work.result(kind)
    assert result.attrs["kind"] == kind
    for figure in measurement.figures:
        if figure.needs is None or figure.needs.met(lens):
            assert figure.draw(result, *(work.result(other) for other in figure.beside)).data
    plates = plates_of({kind: result})[kind]
    assert plates
    assert [words for plate in plates for words in unexplained(plate.figure)] == []
    assert all(len(plate.table) for plate in plates)
    assert plates[0].reading
    assert all(sentence.endswith((".", "!")) for plate in plates for sentence in plate.reading)
    # the page is made of these very plates; that it draws them itself is what tests/report asks
    monkeypatch.setattr(build, "plates_of", lambda *_args, **_options: {kind: plates})
    build_report({kind: result}, tmp_path, title=kind, provenance={"model": lens.model_id})
    assert measurement.heading in (tmp_path / "index.html").read_text() or result.attrs["title"]


def test_every_probe_and_every_renderer_belongs_to_a_measurement() -> None:
    named = {name for each in measurements().values() for name in each.probes}
    assert {name for name in named if "." not in name} == set(probes.__all__)
    assert {name for name in named if name.startswith("explain.")} <= {f"explain.{name}" for name in explain.__all__}
    # figures of studies are functions of their own
    drawn = {figure.renderer for _, figure in catalogue.figures() if isinstance(figure.renderer, str)}
    assert drawn == set(viz.__all__) - WRITERS


def test_the_command_lists_what_the_catalogue_has() -> None:
    result = CliRunner().invoke(app, ["measurements", "--json"])
    assert [each["kind"] for each in json.loads(result.stdout)] == list(measurements())
    assert "repeated_tokens" in CliRunner().invoke(app, ["measurements"]).stdout


def test_what_is_generated_is_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["write_generated.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "tools" / "write_generated.py"), run_name="__main__")
    assert not ended.value.code, capsys.readouterr().out


PROBE = '''"""How far the forecast starts from the last value."""

from __future__ import annotations

import xarray as xr

from tsfm_lens.models.run import Run

__all__ = ["first_jump"]


def first_jump(run: Run) -> xr.Dataset:
    """Distance of the first forecast step from the last value, per series, in data units."""
    data = run.dataset()
    data["jump"] = ("series", run.point[:, 0] - [values[-1] for values in run.batch.values])
    data.attrs = run.describe("first_jump", "First jump", "")
    return data
'''
FIGURE = '''"""A figure of first jumps."""

from __future__ import annotations

import plotly.graph_objects as go
import xarray as xr

__all__ = ["jump_bars"]


def jump_bars(ds: xr.Dataset) -> go.Figure:
    """One bar per series."""
    fig = go.Figure(go.Bar(x=ds["series"].values, y=ds["jump"].values))
    fig.update_layout(title="First jump")
    return fig
'''
ENTRY = '''"""First jumps."""

from __future__ import annotations

from collections.abc import Iterator

import xarray as xr

from tsfm_lens.catalogue.computing import on_all
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.viz import jump_bars


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(jump_bars(ds), frame(ds, "jump"), [f"The largest jump is {float(abs(ds['jump']).max()):.3g}."])


MEASUREMENTS = (
    Measurement(
        kind="first_jump",
        theme="Behaviour",
        about="how far the forecast starts from the last value",
        heading="First jumps",
        guide="A forecast that goes on where the series ends has none.",
        compute=on_all("first_jump"),
        plates=_plates,
        figures=(Figure("jump_bars", "How far each forecast starts from the last value."),),
    ),
)
'''


COMMANDS = """
from typer.testing import CliRunner
from tsfm_lens.catalogue import registry
from tsfm_lens.cli import app

series = "bolt-nano --data bundled:nile --horizon 6"
for command in (
    "figure --list",
    "measurements",
    f"figure jump_bars {series} --format html --out drawn",
    f"report {series} --chapters forecast,first_jump --out told",
):
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 0, result.output
    print(result.output)
"""


@pytest.mark.parametrize(
    ("chapters", "words"),
    [
        ("patching,circut", "no measurement 'circut'. Closest: circuit"),
        ("sweep_curves", "made of many runs"),
        ("", "at least one chapter"),
        ("forecast,lens_logits", "logits over a vocabulary, which bolt-nano does not have"),
    ],
)
def test_chapters_that_cannot_be_are_refused_before_anything_is_written(
    chapters: str, words: str, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    args = [
        "report",
        "bolt-nano",
        "--data",
        "bundled:nile",
        "--horizon",
        "6",
        "--chapters",
        chapters,
        "--out",
        str(out),
    ]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 1
    assert words in " ".join(result.stderr.split())
    assert not out.exists()


def test_a_probe_with_figure_and_reading_is_three_files(tmp_path: Path) -> None:
    for part in ("tsfm_lens", "tools"):
        # with what is compiled, which counts as fresh by the times of the files
        shutil.copytree(ROOT / part, tmp_path / part)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "measurements.md", tmp_path / "docs")
    for room, text in (("probes", PROBE), ("viz", FIGURE), ("catalogue", ENTRY)):
        (tmp_path / "tsfm_lens" / room / "first_jump.py").write_text(text)

    _python(tmp_path, "tools/write_generated.py")
    assert "`first_jump` | `jump_bars`" in (tmp_path / "docs" / "measurements.md").read_text()
    listed = _python(tmp_path, "-c", COMMANDS)
    assert "jump_bars" in listed
    assert "first_jump" in listed
    assert (tmp_path / "drawn" / "jump_bars-bolt-nano.html").exists()
    assert "The largest jump is" in (tmp_path / "told" / "index.html").read_text()


def test_a_measurement_of_ones_own_joins_reports_and_figures(work: Work, tmp_path: Path) -> None:
    rooms: dict[str, ModuleType] = {}
    for name, text in (("probe", PROBE), ("figure", FIGURE)):
        rooms[name] = ModuleType(name)
        exec(text, rooms[name].__dict__)
    probe, bars = rooms["probe"].first_jump, rooms["figure"].jump_bars

    def plates(ds: xr.Dataset):
        yield catalogue.Plate(bars(ds), ds[["jump"]].to_dataframe(), ["One bar per series."])

    own = Measurement(
        kind="first_jump",
        theme="Behaviour",
        about="jumps",
        heading="First jumps",
        guide="",
        compute=on_all(probe),
        plates=plates,
        figures=(Figure(bars, "How far each forecast starts from the last value."),),
    )
    try:
        add(own)
        page = work.run.report(tmp_path, chapters=("forecast", "first_jump")).read_text()
        assert "One bar per series." in page
        from tsfm_lens.figures.named import make_figure

        assert make_figure("jump_bars", work.run).plates[0].figure.data
    finally:
        registry._ADDED.pop("first_jump")
    with pytest.raises(UnknownNameError, match="first_jump"):
        find("first_jump")
    with pytest.raises(InputError, match="is taken"):
        add(find("forecast"))


def _python(root: Path, *args: str) -> str:
    """What the interpreter prints that takes the package from a folder."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *args], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_one_quantity_has_one_number_in_every_chapter(work: Work) -> None:
    alone = work_on(work.first)
    result = alone.result
    parts, heads = result("ablation"), result("explore")
    same = parts.sel(component=heads["component"].values.ravel())
    magnitude = float(abs(work.first.point).max())
    for name in ("mean_shift", "spearman_distance"):
        assert_close(
            same[name].values.ravel(), heads[name].values.ravel(), depth=300, magnitude=magnitude, dtype="float32"
        )
    ranks = result("spectra")["stable_rank"].sel(product="QK")
    np.testing.assert_array_equal(ranks, result("patch_attention")["stable_rank"])
    point, quantiles = work.first.point, work.first.forecast.quantiles
    for kind, forecast in (
        ("ablation", parts["baseline_forecast"]),
        ("effects", result("effects")["plain_forecast"]),
        ("head_parroting", result("head_parroting")["forecast"]),
    ):
        assert_close(forecast.values, point, depth=300, dtype="float32", what=kind)
    # where the season is moved, gaps are filled first
    whole = result("circuit")["forecast"].sel(part="model")
    assert_close(whole.values, alone.shifted[0].point, depth=300, dtype="float32", what="circuit")
    original = result("recipes")["quantile_forecast"].sel(recipe="original")
    for kind, forecast in (("recipes", original), ("patch_attention", result("patch_attention")["quantile_forecast"])):
        np.testing.assert_array_equal(forecast.transpose("series", "quantile", "step").values, quantiles, err_msg=kind)
    np.testing.assert_array_equal(result("parroting")["best_lag"].values, result("head_parroting")["lag"].values)
    np.testing.assert_array_equal(result("attention")["native_median"].values, work.first.forecast.median)
    np.testing.assert_array_equal(result("parroting")["forecast"].values, work.first.forecast.median)

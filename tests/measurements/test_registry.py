"""Every measurement that is declared can be computed, drawn, tabulated and told, and
everything else follows.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numpy.testing import assert_array_equal
from typer.testing import CliRunner

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.cli import app
from tsfm_lens.core import registry
from tsfm_lens.core.registry import (
    Figure,
    find,
    measurement,
    measurements,
)
from tsfm_lens.core.results import Results
from walks import find_blocks
from warm import run_code

ROOT = Path(__file__).parents[2]


(PROBE,) = find_blocks("Add a probe", "python")
(FIGURE,) = find_blocks("Add a figure", "python")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            "head_entropy,minimal_circut",
            "no measurement 'minimal_circut'. Closest: minimal_circuit",
        ),
        ("sweep_curves", "made of many runs"),
        ("", "at least one section"),
        (
            "forecast,lines_of_thought",
            "logits over a vocabulary, which bolt-nano does not have",
        ),
    ],
)
def test_impossible_chapters_are_refused_before_writing(
    sections: str, message: str, tmp_path: Path
) -> None:
    """Impossible chapters are refused before anything is written."""
    out = tmp_path / "report"
    args = "report bolt-nano --data bundled:nile --horizon 6 --sections".split()
    result = CliRunner().invoke(app, [*args, sections, "--out", str(out)])
    assert result.exit_code == 1
    assert message in " ".join(result.stderr.split())
    assert not out.exists()


def test_own_measurement_joins_reports_and_figures(
    work: Results, tmp_path: Path
) -> None:
    """A measurement of one's own joins reports and figures."""
    try:
        for text in (PROBE, FIGURE):
            exec(text, {"__name__": "own.part"})
        page = work.run.report(
            tmp_path, sections=("forecast", "first_jump")
        ).read_text()
        assert "The largest jump is" in page
        from tsfm_lens.report.figures import make_figure

        assert make_figure("jump_bars", work.run).figure.data
        # a cell of a notebook runs twice; another module does not take what is there
        for text in (PROBE, FIGURE):
            exec(text, {"__name__": "own.part"})
        assert [figure.name for figure in find("first_jump").figures] == ["jump_bars"]
        for kind, owner in (("first_jump", "own.part"), ("attribution", "probes")):
            text = PROBE.replace("def first_jump", f"def {kind}")
            expect_error(
                f"is taken by .*{owner}", exec, text, {"__name__": "other.part"}
            )
        expect_error("Closest: first", registry.probe, "frst")
        metadata = dict.fromkeys(("title", "summary", "description"), "")
        expect_error(
            "Closest: heads",
            measurement,
            "other",
            theme="Causes",
            needs="head",
            **metadata,
        )
        expect_error("Closest: tokens", registry.figure, "first_jump", needs="token")
        expect_error(
            "choose one of",
            measurement,
            "other",
            theme="Magic",
            title="",
            summary="",
            description="",
        )
    finally:
        registry._MEASUREMENTS.pop("first_jump")
        registry._FIGURES.pop("first_jump")
    expect_error("first_jump", find, "first_jump")


def test_one_quantity_has_one_number(work: Results) -> None:
    """One quantity has one number in every chapter."""
    alone = Results(work.first)
    parts = alone["ablation_effects"]
    heads = alone["head_states"]
    # every head and MLP, whatever its kind, and not those of one kind of attention
    # alone
    single = parts.sel(component=parts["kind"] != "layer")
    assert set(heads["component"].values) == set(single["component"].values)
    magnitude = float(abs(work.first.point).max())
    for name in ("mean_shift", "spearman_distance", "forecast"):
        matching = heads[name].sel(component=single["component"])
        close_in_float32(
            single[name].values, matching.values, depth=300, magnitude=magnitude
        )
    ranks = alone["head_spectra"]["stable_rank"].sel(product="QK")
    assert_array_equal(ranks, alone["patch_attention"]["stable_rank"])
    point = work.first.point
    quantiles = work.first.forecast.quantiles
    for kind, forecast in (
        ("ablation_effects", parts["baseline_forecast"]),
        ("causal_effects", alone["causal_effects"]["plain_forecast"]),
        ("head_parroting", alone["head_parroting"]["forecast"]),
    ):
        close_in_float32(forecast.values, point, depth=300, what=kind)
    # where the season is moved, gaps are filled first
    full = alone["minimal_circuit"]["forecast"].sel(part="model")
    close_in_float32(
        full.values, alone.shifted[0].point, depth=300, what="minimal_circuit"
    )
    original = alone["ablation_recipes"]["quantile_forecast"].sel(recipe="original")
    for kind, forecast in (
        ("ablation_recipes", original),
        ("patch_attention", alone["patch_attention"]["quantile_forecast"]),
    ):
        assert_array_equal(
            forecast.transpose("series", "quantile", "step").values,
            quantiles,
            err_msg=kind,
        )
    assert_array_equal(
        alone["context_parroting"]["best_lag"].values,
        alone["head_parroting"]["lag"].values,
    )
    assert_array_equal(
        alone["attention_patterns"]["native_median"].values, work.first.forecast.median
    )
    assert_array_equal(
        alone["context_parroting"]["forecast"].values, work.first.forecast.median
    )


ALONE = """
import sys
import warnings

import tsfm_lens

run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("nile"), 6)
run.plot()
run.measure("attribution").plot()
run.report("page", sections=("forecast", "head_entropy"))
unwanted = ("tsfm_lens.studies", "foreign")
loaded = [name for name in sys.modules if name.startswith(unwanted)]
assert not loaded, loaded
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from tsfm_lens.core.registry import find, measurements

    assert "attribution" in measurements()
    assert "ranks_by_model" in measurements()
said = " ".join(str(one.message) for one in caught)
assert "foreign.part" in said and "tsfm_lens.studies.experiments.figures" in said, said
for kind, words in (("lab_runs", "SyntaxError"), ("alien", "ZeroDivisionError")):
    try:
        find(kind)
    except tsfm_lens.core.errors.InputError as error:
        assert words in str(error) and kind in str(error), error
    else:
        raise AssertionError(kind)
"""


def test_core_works_beside_broken_plugins(tmp_path: Path) -> None:
    """The core works beside plug-ins that cannot be loaded."""
    shutil.copytree(ROOT / "tsfm_lens", tmp_path / "tsfm_lens")
    broken = tmp_path / "tsfm_lens" / "studies" / "experiments" / "figures.py"
    broken.write_text("def broken(:\n")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "__init__.py").touch()
    (tmp_path / "foreign" / "part.py").write_text("1 / 0\n")
    metadata = tmp_path / "foreign-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n"
    )
    points = "[tsfm_lens.measurements]\nalien = foreign.part\n"
    (metadata / "entry_points.txt").write_text(points)
    done = run_code(ALONE, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_entry_points_match_registered_names() -> None:
    """An entry point has the name that its module registers."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = measurements()
    for name, module in points["entry-points"]["tsfm_lens.measurements"].items():
        drawings = known[name].figures
        homes = {inspect.unwrap(find_home(drawing)).__module__ for drawing in drawings}
        # a measurement that the general figure draws is only declared in a file
        file = inspect.getfile(importlib.import_module(module))
        declared = Path(file).with_name("measurements.yaml")
        is_declared = declared.exists() and name in registry.declarations(declared)
        assert module in homes or is_declared, (name, homes)


def find_home(figure: Figure) -> Callable[..., Any]:
    """The function of a figure, without the options that are bound to it."""
    function = figure.function
    if isinstance(function, partial):
        return function.func
    return function

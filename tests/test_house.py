"""The house stands as it was planned: imports lead downwards, no circle."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import house
import pytest

from tsfm_lens.core.stats import CONFIDENCE
from tsfm_lens.core.verdict import RULES
from warm import run_code

ALONE = """
import importlib, pkgutil, sys
import numpy as np

sys.modules["gluonts"] = None
import tsfm_lens
from typer.testing import CliRunner

for module in pkgutil.walk_packages(tsfm_lens.__path__, "tsfm_lens."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from tsfm_lens import probes, viz
from tsfm_lens.cli import app
from tsfm_lens.core.errors import MissingExtraError
from tsfm_lens.sweep.statistics.scores import window_scores

assert "reproduce" not in CliRunner().invoke(app, ["--help"]).stdout
run = tsfm_lens.load("bolt-nano").run(tsfm_lens.bundled("nile"), 6, holdout=True)
assert viz.attribution_heatmap(probes.attribution(run)).data
series = "bolt-nano --data bundled:nile --horizon 6".split()
report = ["report", *series, "--sections", "forecast,ablation_effects"]
for command in (report, ["figure", "forecast_fan", *series, "--format", "html"]):
    result = CliRunner().invoke(app, [*command, "--out", command[0]])
    assert result.exit_code == 0, result.output
try:
    window_scores(np.zeros((1, 2)), np.zeros((1, 3, 2)), (0.1, 0.5, 0.9), np.ones(1))
except MissingExtraError as error:
    assert "[sweep]" in str(error)
else:
    raise AssertionError("scored without gluonts")
"""
FORMS = {
    "at module level": "from tsfm_lens.{0} import x",
    "in a function": "def f():\n    from tsfm_lens.{0} import x",
    "for types": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tsfm_lens.{0}"
        " import x"
    ),
    "by string": "from importlib import import_module\nimport_module('tsfm_lens.{0}')",
}


@pytest.mark.parametrize("form", FORMS)
def test_upward_imports_are_always_seen(form: str) -> None:
    """An upward import is seen in every form."""
    texts = {
        "tsfm_lens.models": FORMS[form].format("report"),
        "tsfm_lens.report": FORMS[form].format("models"),
    }
    arrows = house.upward(house.imports(texts))
    assert [(arrow.source, arrow.target, arrow.form) for arrow in arrows] == [
        ("tsfm_lens.models", "tsfm_lens.report", form)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_import_cycles_are_always_seen(form: str) -> None:
    """A circle of imports is seen in every form."""
    texts = {
        "tsfm_lens.data.a": "from tsfm_lens.data import b",
        "tsfm_lens.data.b": FORMS[form].format("data.a"),
    }
    assert house.circles(house.imports(texts)) == [set(texts)]


def test_imports_respect_studies_and_figures() -> None:
    """A study is imported by nothing below it, and figures import no model."""
    texts = dict.fromkeys(
        (
            "tsfm_lens.studies.papers",
            "tsfm_lens.cli",
            "tsfm_lens.models",
            "tsfm_lens.viz",
        ),
        "",
    )
    texts["tsfm_lens.cli"] = "import tsfm_lens.studies.papers"
    texts["tsfm_lens.viz"] = "import tsfm_lens.models"
    assert {arrow.source for arrow in house.upward(house.imports(texts))} == {
        "tsfm_lens.cli",
        "tsfm_lens.viz",
    }


def test_every_package_has_its_layer() -> None:
    assert {house.find_package(module) for module in house.sources()} <= set(
        house.LEVEL
    )


def test_imports_lead_downwards() -> None:
    assert house.upward(house.own_imports()) == []


def test_no_modules_import_each_other() -> None:
    assert house.circles(house.own_imports()) == []


def test_structure_stays_within_bounds() -> None:
    """Measures of the structure of the code stay within their bounds."""
    measures = house.measures()
    assert {
        name: measures[name]
        for name, bound in house.BOUNDS.items()
        if measures[name] > bound
    } == {}


def test_no_text_states_the_confidence_itself() -> None:
    """The confidence of intervals is one constant, which texts are formatted with."""
    percent = re.compile(rf"\b{100 * CONFIDENCE:g} ?%")
    stated = []
    for module, text in house.sources().items():
        nodes = house.nodes(text)
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        stated += [
            f"{module}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Constant)
            and id(node) not in docs
            and percent.search(str(node.value))
        ]
    assert stated == []
    assert percent.search(str(RULES))


def test_the_core_stands_without_studies_and_extras(tmp_path: Path) -> None:
    """Every module imports, a run is measured and drawn, and commands report and draw
    it; gluonts is for sweeps alone, and they say so.
    """
    shutil.copytree(
        house.ROOT / "tsfm_lens",
        tmp_path / "tsfm_lens",
        ignore=shutil.ignore_patterns("studies"),
    )
    done = run_code(ALONE, folder=tmp_path)
    assert done.returncode == 0, done.stderr

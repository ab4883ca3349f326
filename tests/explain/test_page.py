"""The page on one's own forecast: every method and reference, series with gaps, and
proofs of what was asked for.
"""

from __future__ import annotations

import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import tsfm_lens
from refusals import expect_error
from tsfm_lens import explain
from tsfm_lens.core.verdict import list_standing
from tsfm_lens.data import as_series
from tsfm_lens.models import Run
from tsfm_lens.report import build, explanation
from tsfm_lens.report.cards import make_cards
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.input_attribution import input_totals
from tsfm_lens.viz.saving import printed
from tsfm_lens.viz.theme import number

REFUSED = {
    "chronos-nano": "reads values as tokens",
    "bolt-nano": "missing values, towards which there is no gradient",
    "chronos2-nano": "missing values, towards which there is no gradient",
}


@cache
def make_run(name: str) -> Run:
    return tsfm_lens.load(name).run(10 + np.sin(np.arange(64) / 4), 4)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("method", explain.METHODS)
def test_sections_have_proofs_or_reasons(
    name: str, method: str, few: dict[str, Any]
) -> None:
    """A model meets every reference, and a method a different one in every model."""
    turn = list(explain.METHODS).index(method) + 2 * list(REFUSED).index(name)
    run = make_run(name)
    reference = explain.REFERENCES[turn % len(explain.REFERENCES)]
    left = {}
    asked = {
        "method": method,
        "reference": reference,
        "options": few,
        "left_out": left,
    }
    sections = ("forecast", "input_attribution", "deletion_curves")
    found = explanation.explain(run, sections=sections, **asked)
    slopes = method in ("integrated gradients", "gradient × input")
    if slopes and (reference == "missing" or name == "chronos-nano"):
        assert list(found) == ["forecast"]
        # nothing else is proved in its place
        assert len(left) == 2
        assert all(REFUSED[name] in reason for reason in left.values())
        return
    assert not left
    curves = found["deletion_curves"]
    assert curves["explanation"].values[0] == method
    assert {
        found["input_attribution"].attrs["reference"],
        curves.attrs["reference"],
    } == {reference}
    for item in (found["input_attribution"]["attribution"], curves["deletion"]):
        assert np.isfinite(item.values).all()


def test_tables_with_gaps_have_every_section(
    page: Any,
) -> None:
    """A table with gaps in target and covariates has every section."""
    found = page.found
    assert not page.left_out
    assert tuple(found) == explanation.SECTIONS
    for kind, names in {
        "input_attribution": ("attribution", "remainder"),
        "input_routes": ("effect", "total"),
        "deletion_curves": ("deletion", "insertion"),
        "route_faithfulness": ("necessity", "sufficiency"),
        "covariate_use": ("moved",),
    }.items():
        assert all(np.isfinite(found[kind][name].values).all() for name in names), kind
    assert_close(
        found["input_attribution"]["remainder"], 0.0, depth=300, magnitude=20.0
    )
    sentences = [text for panel in page.panels for text in panel.sentences]
    assert not any("nan" in text.lower().split() for text in sentences)
    assert page.html
    rows = make_cards(found, dict.fromkeys(found, "s1"))
    titles = [
        "What moved it",
        "Can this explanation be trusted",
        "How much each covariate moves the forecast",
        "Uncertainty of the forecast",
    ]
    assert [card["title"] for card in rows] == titles
    target = found["input_attribution"].attrs["target"]
    assert all(list(card["cards"]) == [target] for card in rows)
    # totals of the same groups that the sentences rank
    sizes = [
        total["mean_absolute"] for total in input_totals(found["input_attribution"])
    ]
    bars = rows[0]["cards"][target]["bars"]
    assert bars[0][1:] == (number(max(sizes)), 1.0)
    word, reasons = explanation.summarize_verdict(found)
    trust = rows[1]["cards"][target]
    assert trust["big"] == f"the explanation {word}"
    assert trust["note"].startswith(reasons[0])
    assert repr(found).startswith("Explanation with input_attribution, ")
    expect_error("no figure 'tree'", found.plot, "tree")


@pytest.mark.parametrize("role", ["known", "past"])
def test_what_if_says_what_the_page_cannot_tell_from_zero(role: str) -> None:
    """A change of a covariate is beside the tests of this covariate alone."""
    rng = np.random.default_rng(0)
    days = pd.date_range("2024-01-01", periods=64)
    tables = []
    for name in "abcdefghijkl":
        heat, price = rng.normal(size=(2, 64))
        columns = {"y": 10 + rng.normal(size=64), "heat": heat, "price": price}
        tables.append(pd.DataFrame({"id": name, "ds": days, **columns}))
    read = {"targets": ["y"], role: ["heat", "price"]}
    series = as_series(pd.concat(tables), **read)
    run = tsfm_lens.load("chronos2-nano").run(series, 4, holdout=True)
    options = {"covariate_use": {"shuffles": 2}}
    found = explanation.explain(
        run,
        item="b",
        changes={"heat": "+1"},
        start=-8,
        sections=("covariate_use",),
        options=options,
    )
    use = found["covariate_use"].sel(covariate="heat")
    assert not use["slope_significant"].item()
    answers = found.summary()["answers"]
    doubt = [text for text in answers if "not distinguishable from zero" in text]
    assert len(doubt) == 1
    assert "heat" in doubt[0]
    assert "price" not in doubt[0]
    assert "12 series" in doubt[0]
    few_ids = [name for name in run.batch.ids if name[0] in "ab"]
    # two series are too few for any test, whose silence then says nothing
    few = explanation.explain(
        run.select(few_ids),
        item="b",
        changes={"heat": "+1"},
        start=-8,
        sections=("covariate_use",),
        options=options,
    )
    assert not any("distinguishable" in text for text in few.summary()["answers"])


def test_segments_to_leave_out_are_those_of_the_verdict(page: Any) -> None:
    """They are in the reasons, and a change of one of them says so."""
    found = dict(page.found)
    test = found["deletion_curves"]
    # as if the test had told no segment from zero
    unsure = test.assign(segment_agreement=test["segment_agreement"] * 0)
    found = explanation.Explanation(found | {"deletion_curves": unsure})
    undecided = found.summary()["undecided"]
    assert len(undecided) == test.sizes["segment"]
    assert any(undecided[0] in reason for reason in found.summary()["reasons"])
    covariate = test.isel(segment=[-1]).rename(segment="change")
    changes = covariate.assign_attrs(kind="what_if")
    doubts = explanation._list_doubts({"what_if": changes, "deletion_curves": unsure})
    assert doubts == {"undecided": undecided[-1]}


def test_effects_that_stand_are_marked(page: Any) -> None:
    """An effect stands unless its own controls fail, or those of all together."""
    inputs = page.found["input_attribution"]
    test = page.found["deletion_curves"]
    marked = inputs["segment"].values[inputs["stands"].values == 1]
    assert marked.tolist() == list_standing(test)
    nothing = {"control_r2": 0, "segment_control_r2": 0, "segment_agreement": 1}
    values = {"r2": 0.95, "slope": 1.0, "sign_agreement": 1.0, **nothing}
    passing = test.assign(
        {name: test[name] * 0 + value for name, value in values.items()}
    )
    segments = test["segment"].values.tolist()
    assert list_standing(passing) == segments
    flipped = passing["segment_control_r2"].copy()
    flipped.loc[{"segment": segments[0], "segment_control": "sign flipped"}] = 0.99
    doubtful = passing.assign(segment_control_r2=flipped)
    assert list_standing(doubtful) == segments[1:]
    assert list_standing(passing.assign(r2=test["r2"] * 0)) == []


def test_files_hold_the_page_s_numbers(page: Any, tmp_path: Path) -> None:
    files = {str(path.relative_to(tmp_path)) for path in page.found.write(tmp_path)}
    assert {
        f"numbers/{name}.{kind}" for name in page.found for kind in ("nc", "csv")
    } < files
    for name, data in page.found.items():
        assert data.equals(
            xr.load_dataset(tmp_path / "numbers" / f"{name}.nc", engine="scipy")
        )
    messages = json.loads((tmp_path / "explanation.json").read_text())
    assert messages["inputs"] == input_totals(page.found["input_attribution"])
    assert (messages["verdict"], messages["reasons"]) == explanation.summarize_verdict(
        page.found
    )
    assert messages["headline"] in repr(page.found)
    use = page.found["covariate_use"]
    curves = pd.read_csv(tmp_path / "numbers" / "covariate_use_response.csv").set_index(
        ["covariate", "shift", "series"]
    )
    assert_close(
        curves["response"].to_xarray().sel(series=use["series"]),
        use["response"],
        depth=1,
    )
    for row in messages["covariates"]:
        one = use.sel(covariate=row["covariate"])
        assert row["slope"] == one["slope_size"].item()
        assert row["share"] == one["moved_size"].sel(way="constant").item()
        assert row["worth"] is None
    # several items are compared
    effects = pd.read_csv(tmp_path / "numbers" / "input_effects.csv")
    assert effects["series"].nunique() == 2


@pytest.mark.browser
def test_unopened_pages_print_with_figures() -> None:
    """A page that nobody has looked at is printed with its figures."""
    found = explanation.explain(
        make_run("bolt-nano"), sections=("input_attribution",), parts=2
    )
    plain = build.render_page(
        found, build.draw_results(found), title="Printed", provenance={}
    )
    sizes = []
    for content in (
        plain,
        # the same page whose script stops before it looks for figures
        plain.replace(b"plots.forEach(plot => watch.observe(plot));", b"return;"),
    ):
        pdf = printed(content)
        assert pdf.startswith(b"%PDF")
        streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf, flags=re.S)
        sizes.append(sum(len(_unpacked(stream)) for stream in streams))
    assert sizes[0] - sizes[1] > 5000


def _unpacked(stream: bytes) -> bytes:
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


@pytest.mark.parametrize(
    ("asked", "heading"),
    [
        ({}, "Forecasts of 2 items: what moved them"),
        ({"item": 1}, "Forecast of b: what moved it"),
        ({"item": "a", "changes": {"a": "+1"}, "start": -4}, "a with a +1 from -4"),
    ],
)
def test_pages_are_named_by_their_answer(
    asked: dict[str, Any], heading: str, few: dict[str, Any], tmp_path: Path
) -> None:
    """The heading is the subject of the answer, which stands before the cards."""
    values = {name: 10 + np.sin(np.arange(64) / n) for name, n in (("a", 3), ("b", 4))}
    run = tsfm_lens.load("bolt-nano").run(as_series(values), 4)
    sections = ("input_effects", "forecast")
    if asked:
        sections = ("input_attribution", *sections)
    explanation.explain(run, tmp_path, sections=sections, options=few, **asked)
    page = (tmp_path / "index.html").read_text()
    assert f"<h1>{heading}</h1>" in page
    assert page.index('class="lead"') < page.index('class="cards"')


def test_sections_share_adaptive_stretches() -> None:
    """Routes in the first pass of a longer forecast are of the same stretches."""
    rng = np.random.default_rng(0)
    run = tsfm_lens.load("chronos2-nano").run(rng.normal(size=96), 40, seasonality=12)
    few = {"input_attribution": {"method": "occlusion"}}
    sections = ("input_attribution", "input_routes")
    found = explanation.explain(run, sections=sections, options=few)
    inputs, routes = (found[kind] for kind in sections)
    assert routes.sizes["step"] < inputs.sizes["step"] == 40
    assert routes["start"].values.tolist() == inputs["start"].values.tolist()


def test_refused_masking_loses_no_page() -> None:
    """What forbids to choose stretches leaves out the sections that need them."""
    series = tsfm_lens.bundled("nile").tail(40)
    run = tsfm_lens.load("bolt-nano").run(series, 4)
    left = dict[str, str]()
    found = explanation.explain(
        run,
        sections=("forecast", "input_attribution"),
        # of another length than the series
        reference=[np.zeros(3)],
        left_out=left,
    )
    assert list(found) == ["forecast"]
    assert len(left) == 1

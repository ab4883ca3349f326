"""Runs of several items: one is named or all are explained; none by default."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import tsfm_lens
from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens import explain
from tsfm_lens.cli import app
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import find, measurements
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, Run

OCCLUSION = {"method": "occlusion", "parts": 2}
ASKED = {
    "what_if": lambda run, **item: run.what_if(
        start=-8, routes=False, **{run.batch.ids[-1]: "+1"}, **item
    ),
    "explain_change": lambda run, **item: tsfm_lens.explain_change(run, run, **item),
    "input_attribution": lambda run, **item: explain.input_attribution(
        run, **OCCLUSION, **item
    ),
    "input_routes": lambda run, **item: explain.input_routes(
        run, parts=1, components=run.lens.components()[-1:], **item
    ),
    "explain": lambda run, **item: run.explain(
        sections=("input_attribution",),
        options={"input_attribution": OCCLUSION},
        **item,
    )["input_attribution"],
    "measure": lambda run, **item: run.measure(
        "input_attribution", **OCCLUSION, **item
    ),
    "measure attention": lambda run, **item: run.measure("attention_patterns", **item),
    "measure rollout": lambda run, **item: run.measure(
        "autoregressive_attention", **item
    ),
}
CUT = {
    "segments": lambda run, **item: explain.segments(run, parts=2, **item),
    "components": lambda run, **item: explain.components(run, seasons=[], **item),
}


def waves(seed: int, steps: int = 64) -> pd.Series:
    values = (
        10
        + 4 * np.sin(np.arange(steps) / 3)
        + np.random.default_rng(seed).normal(0, 0.5, steps)
    )
    return pd.Series(values, pd.date_range("2026-01-01", periods=steps, freq="D"))


def several(lens: Lens) -> Run:
    return lens.run(as_series({"a": waves(1), "b": waves(2, 50)}), 4)


@pytest.mark.parametrize("asked", [*ASKED, *CUT])
def test_one_item_must_be_named(asked: str) -> None:
    """One of several items must be named."""
    run = several(tsfm_lens.load("bolt-nano"))
    ask = {**ASKED, **CUT}[asked]
    with pytest.raises(InputError, match=r"2 items \(a, b\).*run\.select") as caught:
        ask(run)
    # either advice of the message works
    (item,) = re.findall(r"item=('\w+')", str(caught.value))
    assert f"run.select({item})" in str(caught.value)
    ask(run.select(item.strip("'")), **({"item": 0} if asked == "segments" else {}))


@pytest.mark.parametrize("asked", ASKED)
def test_items_are_explained_as_if_alone(asked: str) -> None:
    lens = tsfm_lens.load("bolt-nano")
    run = several(lens)
    ask = ASKED[asked]
    alone = ask(lens.run(run.batch.select(["b"]), 4))
    names = {"forecast", "attribution", "effect", "after", "pattern"}
    for found in (ask(run, item="b"), ask(run, item=1), ask(run.select("b"))):
        for name in names & {*alone.data_vars}:
            close_in_float32(found[name], alone[name], depth=600, magnitude=20.0)


def test_sections_over_items_need_no_choice() -> None:
    run = several(tsfm_lens.load("bolt-nano"))
    found = run.explain(
        sections=("forecast", "input_effects"), options={"input_effects": {"parts": 1}}
    )
    assert found["forecast"]["series"].values.tolist() == ["a", "b"]
    assert found["input_effects"]["series"].values.tolist() == ["a", "b"]


OF_ITEM = [
    kind
    for kind, measurement in measurements().items()
    if measurement.of_run and measurement.of_one_item
]


def test_measurements_of_one_item_refuse_several() -> None:
    """Measurements of one item are refused for several."""
    run = several(tsfm_lens.load("bolt-nano"))
    assert OF_ITEM
    for kind in OF_ITEM:
        expect_error(r"run\.select|does not have", run.measure, kind)


def test_a_brush_is_of_one_item() -> None:
    pytest.importorskip("anywidget")
    from tsfm_lens.report.explore import brush

    run = several(tsfm_lens.load("bolt-nano"))
    expect_error(r"run\.select", brush, run)
    for made in (brush(run, "b"), brush(run.select("b"))):
        assert made.run.batch.ids == ("b",)


OF_ONE = ("attention_patterns", "autoregressive_attention")


def item_sentence(page: Path) -> str:
    """The sentence on chapters of one item, with blanks as they are; "" without it."""
    found = re.search(r"Of \w+ alone, one of \d+ items[^<]*", page.read_text())
    if found:
        return found[0]
    return ""


def test_pages_name_the_item_explained(tmp_path: Path) -> None:
    """A page says which item its chapters are of."""
    run = several(tsfm_lens.load("bolt-nano"))
    page = run.report(tmp_path, sections=("forecast", *OF_ONE), item="b")
    text = item_sentence(page)
    assert text.startswith("Of b alone, one of 2 items")
    assert all(find(kind).title in text for kind in OF_ONE)
    assert find("forecast").title not in text
    assert item_sentence(run.report(tmp_path / "all", sections=("forecast",))) == ""


def test_the_command_chooses_an_item(tmp_path: Path) -> None:
    table = tmp_path / "two.csv"
    frames = [pd.DataFrame({"id": name, "y": waves(1).values}) for name in "ab"]
    pd.concat(frames).to_csv(table, index=False)
    arguments = f"report bolt-nano --data {table} --horizon 4 --out {tmp_path}".split()
    arguments += ["--id-column", "id", "--sections", ",".join(("forecast", *OF_ONE))]
    wrong = CliRunner().invoke(app, [*arguments, "--item", "c"])
    assert wrong.exit_code != 0
    assert "'c'" in str(wrong.exception) + wrong.output
    done = CliRunner().invoke(app, [*arguments, "--item", "b"])
    assert done.exit_code == 0, done.output
    assert item_sentence(tmp_path / "index.html").startswith("Of b alone")

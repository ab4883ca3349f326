"""The example notebooks run from top to bottom on the embedded checkpoints, and ship
without outputs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
from sitepages.notebooks import PLOTLY

import tsfm_lens
from executing import EXAMPLES, executed, figures, frames, printed, prose
from tsfm_lens.testing import ORACLES, last_digit
from tsfm_lens.zoo import training_record


def test_pages_of_nbconvert_show_figures(tmp_path: Path) -> None:
    code = (
        "import plotly.graph_objects as go\nimport"
        " tsfm_lens.viz.theme\ngo.Figure(go.Bar(y=[1, 2]))"
    )
    nbformat.write(
        nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]),
        tmp_path / "one.ipynb",
    )
    command = [
        sys.executable,
        "-m",
        "nbconvert",
        "--execute",
        "--to",
        "html",
        str(tmp_path / "one.ipynb"),
    ]
    outside = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JPY_SESSION_NAME", "PLOTLY_RENDERER")
    }
    subprocess.run(command, check=True, capture_output=True, env=outside)
    assert "Plotly.newPlot(" in (tmp_path / "one.html").read_text()


def test_own_model_is_wired_and_its_season_head_found() -> None:
    """No wrong table passes, the head is the one that the prose names, and the wiring
    is as short as it says.
    """
    notebook = executed(EXAMPLES / "6-your-own-model.ipynb")
    text = prose(notebook)
    (source,) = (cell.source for cell in notebook.cells if "class Wired" in cell.source)
    _, wired = source.split("class Wired")
    lines = len([line for line in wired.splitlines() if line.strip()])
    assert f"A class of {lines} lines" in text
    assert lines <= 30
    (right,) = re.findall(
        r"my-forecaster: Forecaster.*?└", printed(notebook), flags=re.DOTALL
    )
    assert right.count("passed") == len(ORACLES)
    assert f"All {len(ORACLES)} oracles pass, and a wrong table fails four" in text
    wrong, heads = frames(notebook)
    assert (wrong["deviation"] > wrong["allowed"]).all()
    assert len(wrong) == 4
    effect, weight = (heads[name] for name in heads)
    assert f"Without head `{effect.idxmax()}`" in text
    (stated,) = numbers(text, r"this head puts (\d+ ?%) of its weight")
    # another processor trains other last digits
    assert abs(weight[effect.idxmax()] - stated) < 0.05
    assert weight["1.attn.1"] > 0.95
    assert effect["1.attn.1"] < effect.max() / 5
    assert figures(notebook) == 3


def numbers(text: str, pattern: str) -> list[float]:
    """Every group of the only match of a pattern, percent as shares."""
    (match,) = re.findall(pattern, re.sub(r"\s+", " ", text))
    groups = match
    if isinstance(match, str):
        groups = (match,)
    return [
        float(value.rstrip(" %")) / (100 if value.endswith("%") else 1)
        for value in groups
    ]


def errors(notebook: nbformat.NotebookNode) -> str:
    """What went to stderr, without the progress of reading weights."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    lines = [
        re.split(r"[\r\n]", output["text"])
        for output in outputs
        if output.get("name") == "stderr"
    ]
    return "".join(
        line
        for of_output in lines
        for line in of_output
        if "Loading weights" not in line
    )


def run(name: str, n_figures: int) -> str:
    """What a notebook prints, which writes nothing to stderr."""
    notebook = executed(EXAMPLES / f"{name}.ipynb")
    assert figures(notebook) == n_figures
    assert not errors(notebook)
    return printed(notebook)


def read(name: str, n_figures: int) -> tuple[nbformat.NotebookNode, str]:
    """A notebook after a run that writes nothing to stderr, and its closing text."""
    notebook = executed(EXAMPLES / f"{name}.ipynb")
    assert len(notebook.cells) <= 12
    assert figures(notebook) == n_figures
    assert not errors(notebook)
    return notebook, notebook.cells[-1].source


def table(notebook: nbformat.NotebookNode, columns: list[str]) -> pd.DataFrame:
    """The only table of a notebook, whose cells are numbers."""
    (text,) = (
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "<table" in output.get("data", {}).get("text/html", "")
    )
    # the names of the columns, and of the index
    heading, _, *lines = text.splitlines()
    assert re.split(r"\s{2,}", heading.strip()) == columns
    words = [line.split() for line in lines]
    return pd.DataFrame(
        [[float(cell) for cell in row[-len(columns) :]] for row in words],
        [" ".join(row[: -len(columns)]) for row in words],
        columns,
    )


def plotted(notebook: nbformat.NotebookNode, title: str) -> dict[str, Any]:
    """The figure of a notebook whose title has some words, as data."""
    (found,) = (
        output["data"][PLOTLY]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if title in str(output.get("data", {}).get(PLOTLY, {}).get("layout", ""))
    )
    return found


def decode(values: Any) -> np.ndarray:
    """The numbers of a figure, which plotly writes as text in base 64."""
    if not isinstance(values, dict):
        return np.array(values)
    flat = np.frombuffer(b64decode(values["bdata"]), values["dtype"])
    if "shape" in values:
        return flat.reshape([int(size) for size in values["shape"].split(",")])
    return flat


# a share that the text rounds to whole percent, of a table of two decimals
ROUNDED_TWICE = 2 * last_digit(2)


def test_two_heads_write_two_rush_hours() -> None:
    """Shares and hours of the two heads are those of the table; each rush needs its
    own head, on all Fridays.
    """
    notebook, text = read("1-two-heads-two-rush-hours", 5)
    columns = ["share of the day", "lowest", "highest", "writes most at hour"]
    heads = table(notebook, columns)
    first, second = heads["share of the day"].nlargest(2).index
    found = re.findall(
        r"`([\w.]+)` writes (\d+) % [^`]*?strongest at (\d+):00",
        re.sub(r"\s+", " ", text),
    )
    assert [name for name, _, _ in found] == [first, second]
    for name, share, hour in found:
        assert abs(int(share) / 100 - heads.at[name, "share of the day"]) < (
            ROUNDED_TWICE
        )
        assert int(hour) == heads.at[name, "writes most at hour"]
    together, even = numbers(
        text.replace(" %", "%"), r"they write (\d+%); two heads .* would write (\d+%)"
    )
    both = heads.loc[[first, second], "share of the day"].sum()
    # of a sum of two
    assert abs(together - both) < 2 * ROUNDED_TWICE
    assert abs(even - 2 / len(heads)) < last_digit(2)
    assert heads["lowest"][[first, second]].min() > 2 * even
    lens = tsfm_lens.load("bolt-nano")
    fridays = ["2016-11-11", "2016-12-02", "2016-12-09", "2016-12-16"]
    days = tsfm_lens.windows("pedestrians", fridays, 24, context=512)
    run = lens.run(days, 24, holdout=True)
    written = run.attribute()["attribution"].sel(quantile=0.5)
    rushes = {first: 8, second: 17}
    for name, rush in rushes.items():
        assert (written.sel(component=name).argmax("step") == rush).all()
        median = run.without(name)["quantile_forecast"].sel(quantile=0.5)
        original, without = median.transpose("recipe", "series", "step").values
        (other,) = set(rushes.values()) - {rush}
        left = without[:, rush] / original[:, rush]
        # "about a third"
        assert ((left > 0.25) & (left < 0.4)).all()
        assert (without[:, other] >= original[:, other]).all()


def test_heads_find_the_day_not_the_position() -> None:
    """Two heads keep their hour on days of any length, and three their positions; the
    two are those that the forecast needs most to repeat the day before.
    """
    notebook, text = read("2-they-find-the-day", 5)
    old = "20 h, old position"
    moved = table(notebook, ["hour", "24 h", "20 h", "28 h", "32 h", old])
    moved.index = pd.MultiIndex.from_product([range(3), range(4)])
    least, first, second, kept = numbers(
        text.replace(" %", "%"),
        r"every length, with (\d+%) .* only (\d+%) and (\d+%) of it is left at the old"
        r" positions.* stay there with (\d+%) or more",
    )
    shares = moved[["24 h", "20 h", "28 h", "32 h"]]
    finding = shares.index[(shares >= least - last_digit(2)).all(axis=1)]
    assert [*finding] == [(2, 0), (2, 1)]
    np.testing.assert_allclose(
        moved.loc[finding, old], [first, second], rtol=0, atol=ROUNDED_TWICE
    )
    at_end = moved[(moved["24 h"] >= 0.9) & (moved[old] >= kept - last_digit(2))]
    assert [*at_end.index] == [(0, 1), (1, 0), (1, 2)]
    # the last patch of a day of 24 hours
    assert (at_end["hour"] == 20).all()
    assert moved.loc[(1, 3), ["28 h", "32 h"]].min() >= least
    assert moved.at[(1, 3), "hour"] >= 20
    lost = decode(plotted(notebook, "copied context")["data"][0]["z"])
    largest = np.argsort(lost.ravel())[-2:]
    assert {tuple(np.unravel_index(place, lost.shape)) for place in largest} == {
        *finding
    }


def test_six_components_are_enough_on_most_days() -> None:
    """The circuit keeps what the text says, on its Fridays and on other days."""
    notebook, text = read("3-six-of-27-components-are-enough", 5)
    text = text.replace(" %", "%")
    circuit = plotted(notebook, "Circuit of bolt-nano")["layout"]["meta"]
    assert "6 of 27 components" in circuit["title"]
    faithful, complete = numbers(
        circuit["subtitle"], r"faithfulness ([\d.]+).*completeness ([\d.]+)"
    )
    kept, rest = numbers(
        text, r"keep (\d+%) of the Fridays' .* 21 components keep (\d+%)"
    )
    assert abs(kept - faithful) < ROUNDED_TWICE
    assert abs(rest - (1 - complete)) < ROUNDED_TWICE
    (most,) = numbers(text, r"none of the other ten\s.* more than (\d+%)")
    (dots,) = plotted(notebook, "pedestrians 2016-12-16; position 0")["data"]
    recovered = pd.Series(decode(dots["x"]), dots["text"]).filter(like="cross_attn")
    two = ["decoder.2.cross_attn.0", "decoder.2.cross_attn.1"]
    assert ((recovered[two] > 0.4) & (recovered[two] < 0.5)).all()
    assert recovered.drop(two).max() < most + last_digit(2)
    cells = plotted(notebook, "share of the forecast that six")["data"][0]
    by_week = decode(cells["z"])
    before_christmas = by_week[:-1]
    least, monday, sunday, boxing_day = numbers(
        text,
        r"keep (\d+%) or more of each day.* median Monday .* keep (\d+%), on Sunday,"
        r" the 11th of December, (\d+%), and on Boxing Day, the 26th, (\d+%)",
    )
    assert before_christmas[:, 1:4].min() > least - last_digit(2)
    assert abs(np.median(before_christmas[:, 0]) - monday) < ROUNDED_TWICE
    assert abs(by_week[-4, -1] - sunday) < ROUNDED_TWICE
    assert abs(by_week[-1, 0] - boxing_day) < ROUNDED_TWICE
    opening = " ".join(notebook.cells[0].source.split())
    assert "less than 80 % are Sundays or Mondays, or lie after 22 December" in opening
    week, weekday = np.nonzero(by_week < 0.8)
    after = (week == 7) | ((week == 6) & (weekday > 3))
    assert np.isin(weekday, (0, 6))[~after].all()


@pytest.mark.exhaustive
def test_a_circuit_of_both_stacks_has_more_components() -> None:
    """The search that the notebook names, in both stacks."""
    path = EXAMPLES / "3-six-of-27-components-are-enough.ipynb"
    notebook = nbformat.read(path, as_version=4)
    names: dict[str, Any] = {}
    opening = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    exec(opening.partition("stream =")[0], names)
    circuit = tsfm_lens.probes.minimal_circuit(
        names["run"], names["moved"], nodes=["*.*.mlp", "*.*.*.*"]
    )
    kept = circuit["component"].values[circuit["in_circuit"].values]
    text = " ".join(notebook.cells[-1].source.split())
    assert (
        f"keeps {len(kept)} of {circuit.sizes['component']} components, seven" in text
    )
    assert sum(name.startswith("encoder") for name in kept) == 7


def test_heads_emerge_in_training() -> None:
    """Steps are read off the records again; the model before its first step has no
    induction head.
    """
    text = run("papers/when-heads-are-born", 2)
    for name in ("chronos-nano", "bolt-nano"):
        record = training_record(name)
        steps = record["training_step"].values.tolist()
        copying = record["copying"].values
        half = int(
            np.argmax((copying - copying[0]) / (copying[-1] - copying[0]) >= 0.5)
        )
        written = re.search(
            rf"{name}: half of its copying came between steps ([\d,]+) and ([\d,]+)",
            text,
        )
        assert written is not None
        assert [int(step.replace(",", "")) for step in written.groups()] == steps[
            half - 1 : half + 1
        ]
    trained, before = numbers(
        text,
        r"finds (\d+) induction heads in the trained model, (\d+) in untrained ones",
    )
    assert trained > before == 0
    together = re.search(
        r"correlation of ([\d.]+) in chronos-nano, and of ([\d.]+) in bolt-nano",
        " ".join(text.split()),
    )
    assert together is not None
    path = EXAMPLES / "papers" / "when-heads-are-born.ipynb"
    told = prose(nbformat.read(path, as_version=4))
    assert f"is {together[1]} in chronos-nano and {together[2]} in bolt-nano" in told

"""The example notebooks run from top to bottom on the embedded checkpoints, and ship
without outputs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np

import tsfm_lens
from executing import EXAMPLES, executed, figures, frames, printed, prose
from tsfm_lens.testing import ORACLES
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


def test_lines_of_thought_know_next_hour() -> None:
    """The stream knows the next hour, and two heads write the rush hours."""
    text = run("03-lines-of-thought", 6)
    last, before = numbers(
        text, r"with a correlation of ([\d.]+), the hour before repeated with ([\d.]+)"
    )
    assert last > 0.5
    assert before > 0.5
    (values,) = tsfm_lens.bundled("pedestrians").values
    # the Fridays of the notebook, counted from the end of the series
    profile = np.mean(
        [
            values[len(values) - 24 * days :][-24 * days :][:24]
            for days in (51, 30, 23, 16)
        ],
        axis=0,
    )
    rushes = [int(profile[:12].argmax()), 12 + int(profile[12:].argmax())]
    written = sorted(
        map(int, numbers(text, r"They write most at (\d+):00 and at (\d+):00"))
    )
    assert all(
        abs(hour - rush) <= 1 for hour, rush in zip(written, rushes, strict=True)
    )
    share, even = numbers(text, r", write (\d+%)\. An even spread would be (\d+%)")
    assert share > even


def test_season_heads_follow_the_season() -> None:
    """Heads that find the season of a day still find it in days of other lengths."""
    text = run("04-induction-and-parroting", 8)
    shares = re.findall(
        r"decoder\.\d\.cross_attn\.\d, \d+ h into the season: with days of 20 h (\d+)%",
        text,
    )
    assert shares
    assert all(int(share) > 80 for share in shares)


def test_patching_finds_phase_in_register_token() -> None:
    """Attribution by gradients misses what patching finds."""
    text = run("05-patching-a-season", 5)
    first, *later = numbers(
        text,
        r"recovers (\d+%) after layer 0, (\d+%) after layer 1, and (\d+%) after"
        r" layer 2",
    )
    assert first < min(later)
    estimate, patched = numbers(
        text, r"it says (-?[\d.]+), patching recovers (-?[\d.]+\d)"
    )
    assert abs(estimate - patched) > 0.1


def test_the_circuit_keeps_the_forecast() -> None:
    text = run("06-a-minimal-circuit", 5)
    size, of, share, rest = numbers(
        text,
        r"(\d+) of (\d+) components keep (\d+%) of the forecast; all the others keep"
        r" (-?\d+%)",
    )
    assert (
        len(
            set(
                re.findall(
                    r"decoder\.[\w.]*\w", re.findall(r"The circuit: (.*)\.\n", text)[0]
                )
            )
        )
        == size
        < of
    )
    assert rest < 0.9 <= share
    (usual,) = numbers(text, r"New Year's Eve \d+%, where the Fridays keep (\d+%)")
    assert usual == share
    elsewhere = numbers(
        text, r"On electricity the same circuit keeps (\d+%), on New Year's Eve (\d+%)"
    )
    assert ("it carries over" in text) == (min(elsewhere) >= 0.9)


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
    assert f"correlate with it by {together[1]} and {together[2]}" in told

"""`tsfm-lens explain` on a file with covariates."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens.cli.common import app

MASKING = ("input_attribution", "input_routes", "deletion_curves")
HOURS = 48
AHEAD = 12
OPTIONS = (
    "--targets load --known temperature --past price --id-column site --time-column ts"
).split()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["explain", *arguments])


def sheet(path: Path, *, ahead: int = AHEAD) -> str:
    rng = np.random.default_rng(1)
    frames = []
    for site in "AB":
        steps = HOURS + ahead
        temperature = rng.normal(size=steps)
        hidden = np.where(np.arange(steps) < HOURS, 1.0, np.nan)
        columns = {"load": hidden * (5 + temperature), "temperature": temperature}
        columns["price"] = hidden * rng.normal(size=steps)
        hours = pd.date_range("2024-01-01", periods=steps, freq="h")
        frames.append(pd.DataFrame({"site": site, "ts": hours, **columns}))
    pd.concat(frames).to_csv(path, index=False)
    return str(path)


def known_until(data: str, path: str, *, late: int, further: int = 0) -> None:
    """Write a file as it was ``late`` steps before, its covariates ``AHEAD`` known.

    They are known for ``further`` steps more, as far as the file has them.
    """
    table = pd.read_csv(data)
    step = table.groupby("site").cumcount()
    table.loc[step >= HOURS - late, ["load", "price"]] = np.nan
    table[step < HOURS - late + AHEAD + further].to_csv(path, index=False)


@pytest.mark.parametrize("ahead", [AHEAD, 0])
def test_page_is_written_with_any_future(ahead: int, tmp_path: Path) -> None:
    """A page is written whether or not the future is in the file."""
    data = sheet(tmp_path / "load.csv", ahead=ahead)
    texts = [
        *OPTIONS,
        "--horizon",
        "12",
        "--sections",
        "forecast,covariate_use" + (f",{','.join(MASKING)}" if ahead else ""),
    ]
    done = run(
        "chronos2-nano",
        "--data",
        data,
        *texts,
        "--parts",
        "2",
        "--out",
        str(tmp_path / "page"),
    )
    assert done.exit_code == 0, done.output
    if ahead:
        table = pd.read_csv(tmp_path / "page" / "numbers" / "input_attribution.csv")
        assert table.query("kind == 'past'")["segment"].nunique() == 2
    page = (tmp_path / "page" / "index.html").read_text()
    masked = ("Routes of the input", "Faithfulness by masking")
    for heading in ("Use of covariates", *(masked if ahead else ())):
        assert heading in page
    assert "temperature" in page
    messages = json.loads((tmp_path / "page" / "explanation.json").read_text())
    assert {row["covariate"] for row in messages["covariates"]} == {
        "temperature",
        "price",
    }
    assert (tmp_path / "page" / "numbers" / "covariate_use.nc").stat().st_size
    assert "explaining A, the first of 2; choose another with --item: B" in " ".join(
        done.output.split()
    )
    # without a known future the end of the target is the truth, and what a covariate is
    # worth can be told
    assert ("are held out" in done.output) == (ahead == 0)
    assert ("The error is then" in page) == (ahead == 0)


@pytest.mark.parametrize("sections", ["deletion_curves", "forecast"])
def test_verdict_comes_with_its_reasons(sections: str, tmp_path: Path) -> None:
    """The verdict is given with its reasons."""
    texts = [
        "--data",
        "bundled:nile",
        "--horizon",
        "8",
        "--parts",
        "12",
        "--sections",
        sections,
        "--out",
        str(tmp_path),
    ]
    done = run("bolt-nano", *texts)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "index.html")
    reported = json.loads((tmp_path / "explanation.json").read_text())
    assert reported["verdict"] == ("" if sections == "forecast" else "holds")
    lines = ["", *done.stderr.splitlines()]
    if reported["verdict"]:
        place = lines.index(reported["reasons"][0])
        headline = lines[place - 1]
        assert "Verdict: the explanation holds" in headline
        assert headline.startswith(
            "The forecast of nile averages" if "input" in sections else "Verdict"
        )
    else:
        assert "explanation" not in done.stderr
        assert reported["reasons"] == []


@pytest.mark.parametrize("item", ["", "B"])
def test_terminal_is_about_the_item_that_is_asked_for(
    item: str, tmp_path: Path
) -> None:
    """Without one, all items follow, under a line that says so."""
    texts = ["--data", sheet(tmp_path / "load.csv"), *OPTIONS, "--horizon", "4"]
    texts += ["--sections", "deletion_curves,input_effects", "--parts", "1"]
    texts += ["--out", str(tmp_path / "page")]
    if item:
        texts += ["--item", item]
    done = run("chronos2-nano", *texts)
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert not any("criteria below" in line for line in lines)
    told = [line for line in lines if line.startswith(("A/load:", "B/load:"))]
    assert any("All items" in line for line in lines) == bool(told) == (not item)
    summary = json.loads((tmp_path / "page" / "explanation.json").read_text())
    left_out = [line for line in lines if line.startswith("Leave out")]
    assert bool(left_out) == bool(summary["undecided"])
    for name in summary["undecided"]:
        assert name in left_out[0]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bolt-nano", "--horizon", "12"], "takes no past covariates"),
        (["chronos2-nano", "--horizon", "24"], "ends 12 steps after the context"),
        (
            ["chronos2-nano", "--horizon", "12", "--known", "price"],
            "'A/price' ends 0 steps after the context",
        ),
        (
            ["chronos2-nano", "--horizon", "12", "--past", "load"],
            "'load' is named as ids, timestamps or covariate",
        ),
    ],
)
def test_impossible_requests_write_nothing(
    arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    """What is impossible is reported, and nothing is written."""
    out = tmp_path / "page"
    options = [
        word
        for word in OPTIONS
        if "price" not in arguments or word not in ("--past", "price")
    ]
    done = run(
        *arguments, "--data", sheet(tmp_path / "load.csv"), *options, "--out", str(out)
    )
    assert done.exit_code == 1
    assert complaint in " ".join(done.output.split())
    assert not out.exists()


def test_what_if_comes_first_on_page(tmp_path: Path) -> None:
    """The chapters on what if and what changed come first on the page."""
    data = sheet(tmp_path / "load.csv")
    table = pd.read_csv(data)
    last = table["ts"] == table["ts"][HOURS - 1]
    table.loc[last, ["load", "price"]] = np.nan
    table.to_csv(tmp_path / "earlier.csv", index=False)
    asked = "--horizon 12 --sections forecast --set temperature=+5 --from 2".split()
    asked += ["--until", "2024-01-03 06:00", "--since", str(tmp_path / "earlier.csv")]
    texts = ["chronos2-nano", "--data", data, *OPTIONS]
    done = run(*texts, *asked, "--out", str(tmp_path / "page"), "--json")
    assert done.exit_code == 0, done.output
    reported = json.loads(done.stdout)
    assert "temperature +5 from 2 until 2024-01-03 06:00" in reported["answers"][0]
    messages = " ".join(reported["answers"])
    assert "(4 of 12)" in messages
    for part in ("goes through", "outer quantiles", "same 12 steps", "1 step nearer"):
        assert part in messages
    assert list(reported["results"]) == ["what_if", "forecast_change", "forecast"]
    retained = reported["results"]["what_if"]["coords"]
    assert (retained["start"]["data"], retained["stop"]["data"]) == ([2], [6])
    page = (tmp_path / "page" / "index.html").read_text()
    positions = [page.index(text) for text in ("What if", "Change of", ">Provenance")]
    assert positions == sorted(positions)
    for wrong, message in (
        (["--set", "temperature"], "names no change"),
        (["--from", "2"], "--set"),
    ):
        done = run(*texts, *wrong, "--out", str(tmp_path / "no"))
        assert done.exit_code == 2
        assert message in done.output
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("where", "expected"),
    [((), (0, 12)), (("--from", "-5", "--until", "6"), (-5, 6))],
)
def test_changes_start_at_forecast_by_default(
    where: tuple[str, ...], expected: tuple[int, int], tmp_path: Path
) -> None:
    """A change starts at the forecast unless another start is given."""
    texts = [
        "--data",
        sheet(tmp_path / "load.csv"),
        *OPTIONS,
        "--horizon",
        "12",
        "--sections",
        "forecast",
    ]
    done = run(
        "chronos2-nano",
        *texts,
        "--set",
        "temperature==25",
        *where,
        "--out",
        str(tmp_path / "page"),
        "--json",
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"]["what_if"]
    assert (
        *found["coords"]["start"]["data"],
        *found["coords"]["stop"]["data"],
    ) == expected
    before, after = (
        np.array(found["data_vars"][name]["data"], float)
        for name in ("context", "changed_context")
    )
    row = found["coords"]["series"]["data"].index("A/temperature")
    changed = np.flatnonzero(before[row] != after[row]) - before.shape[1]
    assert changed.tolist() == list(range(min(expected[0], 0), 0))


@pytest.mark.parametrize("name", ["cost=EUR", "=x", "x=="])
def test_names_with_equals_signs_can_change(name: str, tmp_path: Path) -> None:
    """Series whose names have an equals sign can be changed too."""
    table = pd.read_csv(sheet(tmp_path / "load.csv")).rename(
        columns={"temperature": name}
    )
    table.to_csv(tmp_path / "named.csv", index=False)
    options = [name if word == "temperature" else word for word in OPTIONS]
    texts = [
        "--data",
        str(tmp_path / "named.csv"),
        *options,
        "--horizon",
        "12",
        "--sections",
        "forecast",
    ]
    out = ["--out", str(tmp_path / "page"), "--json"]
    done = run("chronos2-nano", *texts, "--set", f"{name}=+5", *out)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["results"]["what_if"]
    assert f"A/{name}" in found["coords"]["series"]["data"]
    if name == "cost=EUR":
        # a name that no series has is refused before a model is opened
        done = run(
            "chronos2-nano", *texts, "--set", "cost=+5", "--out", str(tmp_path / "no")
        )
        assert done.exit_code == 1
        assert "cost=EUR" in done.output
        assert "open the model" not in done.output


def test_answers_can_be_all_that_is_asked_for(tmp_path: Path) -> None:
    """A page may hold what --set and --since make, alone."""
    data = sheet(tmp_path / "load.csv")
    earlier = tmp_path / "earlier.csv"
    table = pd.read_csv(data)
    # four steps earlier, with as many known steps ahead
    cut = [rows.iloc[:-4] for _, rows in table.groupby("site")]
    shorter = pd.concat(cut)
    last = shorter.groupby("site").cumcount() >= HOURS - 4
    shorter.loc[last, ["load", "price"]] = np.nan
    shorter.to_csv(earlier, index=False)
    common = ["--data", data, *OPTIONS, "--horizon", "8", "--item", "B"]
    common += ["--out", str(tmp_path / "page")]
    for kind, option in (
        ("what_if", ("--set", "temperature=+1")),
        ("forecast_change", ("--since", str(earlier))),
    ):
        done = run("chronos2-nano", *common, *option, "--sections", kind)
        assert done.exit_code == 0, done.output
        found = json.loads((tmp_path / "page" / "explanation.json").read_text())
        assert "forecast of B/load" in found["answers"][0]
        assert (tmp_path / "page" / "numbers" / f"{kind}.nc").stat().st_size


@pytest.mark.parametrize(("cure", "item"), [("rows", "A"), ("past", "B")])
def test_cures_of_forecasts_without_common_steps_work(
    cure: str, item: str, tmp_path: Path
) -> None:
    """A day ahead and a day apart, known covariates leave no step in common."""
    data = sheet(tmp_path / "load.csv")
    earlier = str(tmp_path / "earlier.csv")
    known_until(data, earlier, late=AHEAD)
    texts = ["--item", item, "--horizon", "12", "--sections", "forecast_change"]
    texts += ["--since", earlier, "--out", str(tmp_path / "page")]
    done = run("chronos2-nano", "--data", data, *OPTIONS, *texts)
    assert done.exit_code == 1
    message = " ".join(done.output.split())
    assert "1 or more" in message
    assert "past covariates" in message
    options = OPTIONS
    if cure == "past":
        for path in (data, earlier):
            pd.read_csv(path).dropna().to_csv(path, index=False)
        options = " ".join(OPTIONS).replace("--known", "--past").split()
    else:
        known_until(data, earlier, late=AHEAD, further=1)
    done = run("chronos2-nano", "--data", data, *options, *texts)
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "page" / "explanation.json").read_text())
    start = "same one step" if cure == "rows" else "same 12 steps"
    assert start in found["answers"][0]


def test_what_cannot_be_is_refused_before_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A horizon beyond the future, a change or an earlier file cost no model."""

    def refuse(*_: object) -> None:
        pytest.fail("the model was opened")

    monkeypatch.setattr("tsfm_lens.cli.analyses.open_with_progress", refuse)
    data = sheet(tmp_path / "load.csv")
    later = tmp_path / "later.csv"
    table = pd.read_csv(data)
    table["ts"] = pd.to_datetime(table["ts"]) + pd.Timedelta("9h")
    table.to_csv(later, index=False)
    known_to = str(tmp_path / "known_to.csv")
    known_until(data, known_to, late=12)
    common = [*OPTIONS, "--item", "B", "--out", str(tmp_path / "page")]
    for arguments, text in (
        (["--data", data, "--horizon", "13"], "give --horizon 12"),
        (["--data", data, "--set", "temperature=+2,5"], "'+2.5'"),
        (["--data", data, "--set", "temperature=warm"], "is no change"),
        (["--data", data, "--since", str(later)], "9 steps before the earlier one"),
        (["--data", data, "--since", known_to], "1 or more"),
    ):
        done = run("chronos2-nano", *arguments, *common)
        assert done.exit_code == 1
        assert text in " ".join(done.output.split())


@pytest.mark.parametrize("suffix", [".xlsx", ".ods"])
def test_sheets_are_told_how_to_be_read(suffix: str, tmp_path: Path) -> None:
    book = tmp_path / f"book{suffix}"
    book.write_bytes(b"PK")
    done = run("bolt-nano", "--data", str(book))
    assert "read_excel" in done.output

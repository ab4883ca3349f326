"""Recorded answers: there is one for every item, it says what is measured now, and few
claims stay open for want of data.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from sitepages import papers as page

from tsfm_lens.studies.papers.answers import read_answer, recorded, write_answer
from tsfm_lens.studies.papers.context import ANSWERS
from tsfm_lens.studies.papers.items import BY_ID, HOLDS, ITEMS, find_item
from tsfm_lens.studies.papers.measures.lens_records import beyond_twins
from tsfm_lens.studies.papers.reproduce import reproduce
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.papers.verdicts import ClaimPart, Verdict, judge_parts
from tsfm_lens.studies.queue.driver import write_record
from tsfm_lens.studies.queue.orders import all_cells
from tsfm_lens.testing import assert_close

MEASURED = [item for item in ITEMS if not item.why]
ANSWERED = [name for name in ANSWERS if read_answer(find_item(name)) is not None]
"""Items that are read from records; all but those that wait for further runs."""


def test_every_id_is_answered_from_its_record() -> None:
    """Every id has an answer, which has a verdict on every claim of the item."""
    for name in BY_ID:
        assert recorded(find_item(name)) is not None, name
    for item in MEASURED:
        answer = read_answer(item)
        assert answer is not None
        claims = {value.key for value in item.values if value.unit == HOLDS}
        assert claims <= answer[0].claims.keys(), item.id


@pytest.mark.parametrize("name", ANSWERED)
def test_answers_are_those_of_the_records(name: str) -> None:
    """An answer says what its record holds; else ``--stale`` has to write it anew."""
    item = find_item(name)
    answer = read_answer(item)
    assert answer is not None
    now = ANSWERS[name]()
    for claim, verdict in now.claims.items():
        assert answer[0].claims[claim].outcome == verdict.outcome, claim
    assert answer[0].values.keys() == now.values.keys()
    found, expected = (
        np.array(list(values.values())) for values in (answer[0].values, now.values)
    )
    magnitude = float(np.nanmax(np.abs(expected), initial=1.0))
    assert_close(found, expected, depth=2**20, magnitude=magnitude)


def test_few_claims_are_open_for_want_of_data() -> None:
    """At most eight claims wait for a model, and others for runs that are planned; each
    says for what.
    """
    waiting = [
        part.why
        for item in MEASURED
        for verdict in read_answer(item)[0].claims.values()  # type: ignore[index]
        for part in verdict.parts
        if verdict.outcome == "undecided" and verdict.over != "twin"
        if part.interval is None or "not testable" in part.why
    ]
    assert len([why for why in waiting if "planned runs" not in why]) <= 8
    assert all(" need" in why for why in waiting)


def test_an_answer_is_read_as_written(tmp_path: Path) -> None:
    """Numbers, intervals and verdicts survive, and printed numbers are joined anew."""
    item = find_item("S1-F6")
    parts = [ClaimPart("", np.ones(8), "x", data="ETTh1")]
    verdict = judge_parts("run", *parts)
    result = MeasuredValues({"a": 0.25}, claims={"diagonal": verdict}, notes=("b",))
    result.mean("c", np.arange(8.0))
    write_answer(item, result, ["model"], {"revision": "1"}, tmp_path)
    answer = read_answer(item, tmp_path)
    assert answer is not None
    for field in fields(MeasuredValues):
        value = getattr(answer[0], field.name)
        if field.name == "intervals":
            value = {name: tuple(ends) for name, ends in value.items()}
        if field.name == "claims":
            assert value["diagonal"].outcome == "holds"
            continue
        assert value == getattr(result, field.name), field.name
    assert answer[1:] == (["model"], {"revision": "1"})
    assert read_answer(find_item("S1-F7"), tmp_path) is None


def _by_data(*margins: np.ndarray, equal_within: float = 0.0) -> Verdict:
    parts = [
        ClaimPart("", values, "x", data=name, equal_within=equal_within)
        for name, values in zip("AB", margins, strict=False)
    ]
    return judge_parts("run", *parts)


def test_intervals_of_attention_stay_in_its_range() -> None:
    """No mass is above 1, no rank or norm above the channels, no entropy above even."""
    for name in ("S1-F3", "S1-F6", "S1-F7"):
        answer = read_answer(find_item(name))
        assert answer is not None
        for quantity, (low, high) in answer[0].intervals.items():
            channels = 8 if "exchange" in quantity else 7
            highest = {"diagonal mass": 1.0, "entropy": np.log(channels)}
            measure = quantity.split(" of ")[0]
            if "λ_max" not in quantity:
                assert high <= highest.get(measure, channels), quantity
            assert 0 <= low <= answer[0].values[quantity] <= high, quantity


def test_a_verdict_may_depend_on_the_data() -> None:
    """A claim that is reversed on another data set depends on the data."""
    true = np.linspace(1, 2, 12)
    assert _by_data(true, true).outcome == "holds"
    assert _by_data(true, -true).outcome == "depends on the data"
    assert _by_data(-true, -true).outcome == "does not hold"
    mixed = true * np.resize([1, -1], 12)
    assert _by_data(true, mixed).outcome == "undecided"
    assert _by_data(mixed, -true).outcome == "does not hold"


def test_equal_errors_contradict_a_difference() -> None:
    """A difference fails where its interval lies within the margin, not otherwise."""
    near = 0.002 * np.resize([1.0, -1.0], 20)
    verdict = _by_data(near, equal_within=0.01)
    assert verdict.outcome == "does not hold"
    assert "equal within 1%" in verdict.parts[0].why
    assert _by_data(near).outcome == "undecided"
    assert _by_data(20 * near, equal_within=0.01).outcome == "undecided"
    assert _by_data(near + 0.03, equal_within=0.01).outcome == "holds"


def test_twins_are_a_null() -> None:
    """A model stands out if none of 24 twins reaches it; twins of no order go."""
    twins = np.linspace(0, 1, 24)
    outcomes = [beyond_twins("m", own, twins, "x").outcome for own in (2.0, 0.5, -1.0)]
    assert outcomes == ["holds", "undecided", "does not hold"]
    twins[5:] = np.nan
    assert beyond_twins("m", 2.0, twins, "x").outcome == "undecided"


def test_headlines_of_the_small_models() -> None:
    """What the pages say of attention on exchange, and of identity attention."""
    attention = reproduce("S1-F6")
    part = "SAMformer's attention is nearer to the identity than the transformer's"
    assert str(attention.sel(quantity=part)["verdict"].values) == "depends on the data"
    exchange = attention.sel(quantity=f"{part}: Exchange")
    assert str(exchange["verdict"].values) == "does not hold"
    identity = reproduce("S1-T10")
    row = identity.isel(quantity=identity["part_of"].values != "")
    assert "equal within 1%" in str(row["why"].values[0])


def test_the_page_has_a_row_for_every_claim() -> None:
    for item in MEASURED:
        answer = read_answer(item)
        assert answer is not None
        rows = list(page._rows(item))
        assert [row[2] for row in rows] == [
            verdict.outcome for verdict in answer[0].claims.values()
        ]
        assert all(row[3] for row in rows), item.id
    assert all("%" in cell for cell in next(page._heavy())[2:])


def test_open_runs_are_tabulated_with_their_hours(tmp_path: Path) -> None:
    """Each record that lacks runs has a row; those that are whole have none."""
    rows = page.describe_open_runs(tmp_path).splitlines()
    cells = [cell for cell in all_cells(Path()) if cell.record == "chronos_level_runs"]
    hours = sum(cell.seconds for cell in cells) / 3600
    expected = f"| chronos_level_runs | 0 of {len(cells)} | {hours:.1f} | one core |"
    assert expected in rows
    record = xr.Dataset(
        {"processor_seconds": ("cell", np.full(len(cells), 36.0))},
        {"cell": [cell.name for cell in cells]},
    )
    file = tmp_path / "chronos_level_runs.nc"
    write_record(record.isel(cell=slice(1, None)), file)
    text = page.describe_open_runs(tmp_path)
    assert f"| chronos_level_runs | {len(cells) - 1} of {len(cells)} | 0.0 |" in text
    write_record(record, file)
    assert "chronos_level_runs" not in page.describe_open_runs(tmp_path)

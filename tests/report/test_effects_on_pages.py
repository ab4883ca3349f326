"""One effect of a component has one number on a page: on its map, in cards and
chapters, whatever the seed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planted
import tsfm_lens
from browsing import Page
from tsfm_lens.models.run import Run
from tsfm_lens.report.cards import make_cards

H = 8
DIGITS = 1e-4  # numbers of a page have four or five


def forecast(name: str, seed: int = 0) -> Run:
    lens = tsfm_lens.load(name)
    if lens.adapter.readout == "token":
        samples = {"num_samples": 4}
    else:
        samples = {}
    return lens.run(
        tsfm_lens.bundled("elnino", "nile"), H, holdout=True, seed=seed, **samples
    )


def parse_state(run: Run, folder: Path) -> tuple[dict[str, Any], str]:
    page = Page(
        run.report(folder, sections=("ablation_effects", "head_states")).read_text()
    )
    return json.loads(page.unpacked("linked-state")), re.sub(r"\s+", " ", page.text)


@pytest.mark.parametrize(
    "name",
    [
        "chronos-nano",
        "bolt-nano",
        pytest.param("chronos2-nano", marks=pytest.mark.exhaustive),
    ],
)
def test_map_agrees_with_chapter_numbers(name: str, tmp_path: Path) -> None:
    """The map has every component with the number that the chapter gives."""
    run = forecast(name)
    state, text = parse_state(run, tmp_path)
    parts = run.measure("ablation_effects")
    single = parts.sel(component=parts["kind"] != "layer")
    assert set(state["names"]) == set(single["component"].values.tolist())
    single = single.sel(component=state["names"])
    cells = [cell for row in state["rows"] for cell in row["cells"]]
    assert sorted(cells) == list(range(len(state["names"])))
    if run.tokens_read:
        later = slice(1, None)
    else:
        later = slice(None)
    for position, series in enumerate(state["series"]):
        shift = single["mean_shift"].isel(series=position).values
        np.testing.assert_allclose(
            [entry["effect"] for entry in series["states"]], shift, rtol=DIGITS
        )
        # what is drawn is what is measured, and the error beside it that of the same
        # forecast
        plain = np.array(series["line"])[later]
        shifts = np.array([entry["shift"] for entry in series["states"]])[:, later]
        drawn = plain + shifts
        # the page has five digits of each
        distance = np.abs(np.abs(shifts).mean(-1) - shift)
        assert (distance < 1e-3 * np.max(shift)).all()
        baseline = single["baseline_forecast"].isel(series=position).values
        above = single["forecast"].isel(series=position).values > baseline
        ups = [entry["up"] for entry in series["states"]]
        assert ups == above[:, later].sum(-1).tolist()
        floor = float(single["mean_shift_floor"][position])
        assert series["floor"] == pytest.approx(floor, rel=DIGITS)
        np.testing.assert_allclose(
            np.abs(drawn - plain).mean(-1), shift, atol=2 * DIGITS * np.abs(plain).max()
        )
        np.testing.assert_allclose(
            [entry["error"] for entry in series["states"]],
            single["mae"].isel(series=position),
            rtol=DIGITS,
        )
    # the card names the strongest, which is on the map, and the chapter the effect of
    # the one that it draws
    ids = single["series"].values.tolist()
    cards = make_cards({"ablation_effects": parts}, {"ablation_effects": "s1"})[0][
        "cards"
    ]
    for position, item in enumerate(ids):
        strongest = int(single["mean_shift"].isel(series=position).argmax())
        assert cards[item]["big"] == state["labels"][strongest]
        reported = re.search(
            rf"Without (\S+) the [\w ]+ forecast of {item} moves by ([\d.]+)", text
        )
        assert reported is not None
        effect = single["mean_shift"].isel(series=position).sel(component=reported[1])
        assert reported[2].rstrip(".") == f"{float(effect):.3g}"


def test_input_reading_follows_strongest_head() -> None:
    """Not the head with the sharpest attention, and no head that does nothing."""
    ds = planted.explore()
    ds["lag_share"][:, 0, 2] = 1.0
    (card,) = make_cards({"head_states": ds}, {"head_states": "s1"})
    one = card["cards"]["a"]
    # head 2 of layer 1, then 1 and 0; head 2 of layer 0; heads 1 and 0, which does
    # nothing, are not among the four
    assert one["big"] == "2001-01-22"
    assert [label.split(":")[0] for label, *_ in one["bars"]] == [
        f"layer {at}" for at in ("1, head 2", "1, head 1", "1, head 0", "0, head 2")
    ]
    floor = ds["mean_shift_floor"].copy(data=np.full(3, 11.5))
    (card,) = make_cards(
        {"head_states": ds.assign(mean_shift_floor=floor)}, {"head_states": "s1"}
    )
    assert len(card["cards"]["a"]["bars"]) == 1
    # where that one rests on special tokens it says so, and where none acts there is no
    # card
    resting = ds.assign(attention_other=ds["attention_other"] * 0 + 0.9).assign_attrs(
        special="EOS"
    )
    (card,) = make_cards({"head_states": resting}, {"head_states": "s1"})
    assert card["cards"]["a"]["big"] == "EOS"
    assert (
        make_cards(
            {"head_states": ds.assign(mean_shift_floor=floor * 100)},
            {"head_states": "s1"},
        )
        == []
    )

"""Numbers of the paper on structured attention: claims on planted runs, counts, and the shipped results."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import registry
from tsfm_lens.studies import experiments
from tsfm_lens.studies.experiments import figures
from tsfm_lens.studies.papers import items_structured as said
from tsfm_lens.studies.papers import measures_structured
from tsfm_lens.studies.papers.reproduce import reproduce
from tsfm_lens.studies.structured import level_blocks, oracle_errors
from tsfm_lens.testing import assert_close

SEEDS = 8
ARMS = {
    "1 head, rank 16": (16, 512),
    "1 head, rank 1": (1, 32),
    "1 head, rank 2": (2, 64),
    "1 head, rank 4": (4, 128),
    "8 heads, rank 2": (2, 64),
    "8 heads, BTT": (16, 128),
    "1 head, MLR 1+1": (3, 64),
    "1 head, BTT": (16, 128),
}


def runs(last: dict[str, float], seeds: int = SEEDS) -> xr.Dataset:
    """Runs whose errors are planted, the same of every seed but for a little."""
    spread = 1 + 1e-3 * np.random.default_rng(0).standard_normal(seeds)
    errors = np.ones((len(last), seeds, 8))
    errors[..., -1] = [value * spread for value in last.values()]
    rank, held = zip(*(ARMS[arm] for arm in last), strict=True)
    return xr.Dataset(
        {
            "by_pairs": (("arm", "seed", "pairs"), errors),
            "curve": (("arm", "seed", "epoch"), np.ones((len(last), seeds, 2))),
            "oracle": ("pairs", oracle_errors(4, 8).numpy()),
        },
        coords={
            "arm": [f"{arm}, D = 16" for arm in last],
            "seed": range(seeds),
            "pairs": range(8),
            "group": ("arm", list(last)),
            "width": ("arm", [16] * len(last)),
            "rank_ratio": ("arm", np.array(rank) / 4),
            "score_parameters": ("arm", list(held)),
        },
        attrs={"kind": "in_context_runs", "inputs": 4, "layers": 2, "steps": 2500},
    )


def planted(monkeypatch: pytest.MonkeyPatch, data: xr.Dataset) -> None:
    monkeypatch.setattr(measures_structured, "record", lambda name: data)


def verdict(found: xr.Dataset, claim: str) -> str:
    return str(found["verdict"].sel(quantity=claim).values)


@pytest.mark.parametrize(("low", "outcome"), [(0.9, "holds"), (0.1, "does not hold")])
def test_low_ranks_fail_where_they_do(low: float, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, runs({**dict.fromkeys(ARMS, 0.4), "1 head, rank 1": 1.0, "1 head, rank 2": low}))
    found = reproduce("S2-F2")
    assert verdict(found, said.LOW_FAILS) == outcome
    # rank 4 is no part of it, d being 4
    parts = found["quantity"].values[found["part_of"].values == said.LOW_FAILS]
    assert [str(part).split(": ")[1].split(",")[1].strip() for part in parts] == ["rank 1", "rank 2"]
    ours = found["ours"]
    assert float(ours.sel(quantity=said.UNLEARNED)) == 1
    assert float(ours.sel(quantity=said.SOLVED)) == 0
    assert_close(float(ours.sel(quantity=said.AFTER.format(arm="1 head, rank 1"))), 1.0, depth=2**44)
    again = reproduce("s2-f6")
    assert again["quantity"].values.tolist() == found["quantity"].values.tolist()


def test_few_seeds_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    few = runs({**dict.fromkeys(ARMS, 0.4), "1 head, rank 1": 1.0, "1 head, rank 2": 1.0}, seeds=6)
    planted(monkeypatch, few)
    assert verdict(reproduce("S2-F2"), said.LOW_FAILS) == "undecided"


@pytest.mark.parametrize("true", [True, False])
def test_claims_on_heads_and_forms(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    eight, low, form = (0.8, 0.9, 0.4) if true else (0.3, 0.2, 0.5)
    last = {
        "1 head, rank 16": 0.4,
        "1 head, rank 2": low,
        "1 head, rank 4": low,
        "8 heads, rank 2": eight,
        "8 heads, BTT": form,
        "1 head, MLR 1+1": form,
        "1 head, BTT": form,
    }
    planted(monkeypatch, runs(last))
    found = reproduce("S2-F3")
    for claim in (said.EIGHT_FAIL, said.STRUCTURED, said.STRUCTURED_EIGHT):
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim
    # every form stands beside the low rank of as many numbers
    parts = [str(part) for part in found["quantity"].values[found["part_of"].values == said.STRUCTURED]]
    assert ["MLR 1+1, against rank 2" in part for part in parts] == [True, False]
    assert ["BTT, against rank 4" in part for part in parts] == [False, True]


@pytest.mark.parametrize("true", [True, False])
def test_claims_on_widths(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    eight, form = (0.8, 0.4) if true else (0.2, 0.5)
    grids = []
    for width, factor in ((16, 1.0), (64, 0.9)):
        last = {"1 head, rank 16": 0.6 * factor, "8 heads, rank 2": eight * factor, "8 heads, BTT": form * factor}
        names = [f"{name}, D = {width}" for name in ("1 head", "8 heads", "8 heads, BTT")]
        grid = runs(last).assign_coords(arm=names, width=("arm", [width] * 3))
        grids.append(grid.assign_coords(group=("arm", ["1 head", "8 heads", "8 heads, BTT"])))
    planted(monkeypatch, xr.concat(grids, "arm", data_vars="minimal"))
    found = reproduce("S2-F11")
    for claim in (said.EIGHT_WIDE, said.FORMS_WIDE):
        assert verdict(found, claim) == ("holds" if true else "does not hold"), claim
    parts = [str(part) for part in found["quantity"].values[found["part_of"].values == said.FORMS_WIDE]]
    assert [part.rsplit(": ")[-1] for part in parts] == ["D = 16", "D = 64"]


def test_counts_are_the_printed_formulas_but_for_what_is_a_bound() -> None:
    for name in ("S2-T3", "S2-FL"):
        found = reproduce(name)
        assert (found["difference"].dropna("quantity") == 0).all(), name
    families = reproduce("S2-T1")
    off = families["quantity"].values[families["difference"].values != 0]
    assert off.tolist() == [said.RANK.format(family=f"MLR {said.RANKS}")]
    assert float(families["ours"].sel(quantity=off[0])) == 64
    costs = reproduce("S2-T2")
    known = costs["difference"].where(costs["unit"] == "").dropna("quantity")
    assert len(known) == 3
    assert (known == 0).all()
    assert verdict(costs, said.BEST.format(ranks="32|8|8|16")) == "holds"
    assert verdict(costs, said.BEST.format(ranks="8 of 8")) == "does not hold"


def test_savings_of_the_key_cache_follow_from_the_ranks() -> None:
    found = reproduce("S2-KV")
    for words, ranks in said.LISTS.items():
        kept = sum(rank / count for rank, count in zip(ranks, level_blocks(len(ranks)), strict=True))
        assert_close(float(found["ours"].sel(quantity=said.SAVES.format(ranks=words))), sum(ranks) / kept, depth=8)
    assert abs(float(found["difference"].sel(quantity=said.SAVES.format(ranks="r/8, 8 levels")))) < 1 / 50


def test_the_lemma_holds_in_every_draw() -> None:
    assert float(reproduce("S2-L1", seeds=5, seed=2)["ours"].sel(quantity=said.APART)) == 0


def test_the_figure_shows_the_numbers_of_the_runs() -> None:
    data = runs({**dict.fromkeys(ARMS, 0.5), "1 head, rank 1": 0.9})
    data["by_pairs"][0, 2:] = np.nan
    fig = figures.in_context_errors(data)
    means = {trace.name: trace for trace in fig.data if trace.mode == "markers" and trace.marker.size == 9}
    at = data["by_pairs"].values[1, :, -1]
    assert means["1 head, rank 1"].y[0] == at.mean()
    reach = means["1 head, rank 1"].error_y.array[0]
    # t of seven degrees of freedom
    assert_close(float(reach), 2.364624 * at.std(ddof=1) / SEEDS**0.5, depth=4, dtype="float32")
    assert means["1 head, rank 16"].error_y.array is None
    lines = {trace.name: trace for trace in fig.data if trace.mode == "lines"}
    assert lines["least squares, expected"].y[-1] == 0
    assert "2 to 8 seeds" in fig.layout.meta["subtitle"] if "subtitle" in fig.layout.meta else True
    (plate,) = registry.find("in_context_runs").draw_panels(data)
    assert plate.sentences[0].startswith("1 head, ")
    assert plate.sentences[-1].startswith("1 head, rank 1, D = 16: 0.9")


def test_shipped_runs_are_of_the_stated_grid() -> None:
    data = experiments.record("in_context")
    arms = experiments.in_context_arms()
    assert set(map(str, data["arm"].values)) <= set(arms)
    done = np.isfinite(data["by_pairs"].values[..., -1])
    assert done.any(axis=1).all()
    assert data["oracle"].values.tolist() == oracle_errors(6, 12).tolist()
    # the curve ends where the points' mean is
    ends = data["curve"].isel(epoch=-1).values[done]
    assert_close(ends, data["by_pairs"].mean("pairs").values[done], depth=100)

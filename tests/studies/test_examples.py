"""The example notebooks run from top to bottom on the embedded checkpoints, and ship
without outputs.
"""

from __future__ import annotations

import re

import xarray as xr

from executing import EXAMPLES, executed, figures, printed, prose
from tsfm_lens.studies import experiments, samformer
from tsfm_lens.studies.papers.reproduce import reproduce


def test_sharp_minima_are_cured_by_sam() -> None:
    notebook = executed(EXAMPLES / "papers/sharp-minima.ipynb")
    assert figures(notebook) == 4
    runs = experiments.record("toy")
    messages = printed(notebook)
    errors = runs["validation_mse"].sel(arm=["transformer", "transformer + SAM"]).values
    oracle = samformer.oracle_loss(512, 70_000)
    above = 100 * (errors / oracle - 1)
    assert (
        f"{above[0].min():.0f} % or more above the oracle with each of"
        f" {runs.sizes['seed']} seeds" in messages
    )
    assert (
        f"with SAM: {above[1].min():+.2f} to {above[1].max():+.2f} % of what the oracle"
        in messages
    )
    real = experiments.record("samformer_runs")["end_sharpness"]
    times = (
        (real.sel(arm="ETTh1 96 Transformer") / real.sel(arm="ETTh1 96 SAMformer"))
        .dropna("seed")
        .values
    )
    assert (
        f"the minimum without SAM is {times.min():.1f} to {times.max():.1f} times as"
        " sharp" in messages
    )
    # the sharper minimum is the transformer's with every seed
    times = re.search(r"is (\d+) to (\d+) times as sharp", messages)
    assert times is not None
    assert int(times[1]) > 1
    assert f"{times[1]} to {times[2]} times as sharp" in prose(notebook)


def test_structured_scores_match_the_runs() -> None:
    notebook = executed(EXAMPLES / "papers/structured-attention.ipynb")
    assert figures(notebook) == 4
    messages = printed(notebook)
    runs = experiments.record("in_context")
    reported = re.findall(
        r"^(.*): (holds|does not hold|undecided)$", messages, flags=re.MULTILINE
    )
    verdicts = xr.concat(
        [reproduce(name)["verdict"] for name in ("S2-F2", "S2-F3", "S2-F11")],
        "quantity",
    )
    assert (
        reported
        == [
            pair
            for pair in reported
            if str(verdicts.sel(quantity=pair[0]).values) == pair[1]
        ]
        != []
    )
    last = runs["by_pairs"].isel(pairs=-1).assign_coords(arm=runs["group"].values)
    full, eight, trains = (
        last.sel(arm=name)
        for name in ("1 head, rank 16", "8 heads, rank 2", "8 heads, BTT")
    )
    for rank in (1, 2, 4):
        # with every seed that left the start
        assert ((last.sel(arm=f"1 head, rank {rank}") > full) | (full > 0.9)).all()
    assert int((trains < eight).sum()) == 13
    # at the start still
    assert int((last.sel(arm="1 head, BTT") > 0.9).sum()) == 5
    assert eight.mean() < full.mean()
    assert "block tensor train: 128 numbers, error 0.00" in messages
    assert "low rank 4: 128 numbers, error 0.87 at best" in messages

"""Printed numbers of compressed models beside those of models cut here, and of the record of models trained here."""

from __future__ import annotations

import numpy as np
import pytest

from reproductions import nano, ours, row, verdict
from tsfm_lens import compress
from tsfm_lens.studies import recipes
from tsfm_lens.studies.papers.measures import low_rank
from tsfm_lens.studies.papers.reproduce import item_of, reproduce
from tsfm_lens.testing import assert_close

SHIPPED = ("S0-F7", "S0-T4", "S0-LR", "S0-F4C", "S0-F11")


@pytest.mark.parametrize("name", SHIPPED)
def test_records_of_trained_models_need_no_model(name: str) -> None:
    found, item = reproduce(name), item_of(name)
    assert {value.quantity for value in item.values} & set(found["quantity"].values.tolist())
    assert np.isfinite(found["ours"].values[found["verdict"].values == ""]).all()
    assert found.sizes["setting"]
    assert found.attrs["source"] == item_of("S0-T2").source


def test_the_printed_size_ratios_are_those_of_the_ranks_of_the_arms() -> None:
    record, found = recipes.low_rank_record("attention"), reproduce("S0-F7")
    # three layers of ranks 3, 4, 5 in the encoder and one of 3, twice over, in the decoder, of heads of 16
    share = (3 + 4 + 5 + 3 + 3) / (5 * 16)
    assert_close(ours(found, "size ratio, schedule (7, 0.4)"), share, depth=8)
    rise = record.sel(arm="medium schedule")["mase_rise_estimate"]
    assert_close(ours(found, "zero-shot MASE, schedule (7, 0.4)"), 1 + rise, depth=8)
    table_4 = reproduce("S0-T4")
    assert verdict(table_4, "layered") == "undecided"
    assert "few" in str(row(table_4, "layered")["why"].values)


def test_a_model_is_cut_where_its_ranks_come_to_the_printed_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank, "RATIOS", low_rank.RATIOS[1:3])
    lens = nano("bolt-nano")
    found = reproduce("S0-T2", lens, windows=1, horizon=8)
    for ratio in low_rank.RATIOS:
        # one rank of each matrix more or less, where many reach ε together
        assert abs(ours(found, f"share of ranks, ratio {ratio:g}") - ratio) <= 1 / 96
    ranks = compress.chosen_ranks(lens, epsilon=ours(found, "ε, ratio 0.237"))
    forms = {name: matrix.form() for name, matrix in compress.matrices(lens).items()}
    assert_close(compress.ratio_of(forms, ranks).ranks, ours(found, "share of ranks, ratio 0.237"), depth=8)
    # a model that is read out by quantiles has no tokens to overlap
    assert np.isnan(ours(found, "overlap of the ten likeliest tokens, ratio 0.237"))


def test_ranks_grow_with_the_vocabulary_in_what_training_added() -> None:
    found = reproduce("S0-F4C")
    quantity = "ε-rank of what training added to W_Q, ε = 0.1, vocabulary of rank {}"
    grown = [ours(found, quantity.format(rank)) for rank in (1, 32)]
    moved = recipes.low_rank_record("vocabulary")["moved_rank"].sel(epsilon=0.1, vocabulary=[1, 32])
    assert_close(grown, moved.isel(training_step=-1).mean(("seed", "layer")).values, depth=8)
    assert grown[0] < grown[1]

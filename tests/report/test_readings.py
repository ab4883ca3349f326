"""Readings state planted truths."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens.report import readings as read


def test_forecast_counts_what_the_band_holds(results):
    words = read.read_forecast(results["forecast"], 0)
    assert words[0] == "The median forecast of a starts at 11 m and ends at 15 m after 5 steps."
    assert "80 % band is 4 m wide at the first step and 1 m at the last" in words[1]
    assert "within the band in 3 of 5 steps" in words[2]
    assert "the median misses it by 1 m on average" in words[2]
    # the last context value is 9, the truth 10 to 14
    assert "repeating the last observed value would have missed it by 3 m" in words[2]


def test_forecast_without_truth_judges_nothing(results):
    assert len(read.read_forecast(results["forecast"].drop_vars("truth"), 0)) == 2


def test_entropy_names_the_layer_of_the_largest_fall(results):
    words = " ".join(read.read_entropy(results["lens"]))
    assert "6 nats at the embedding to 1 nats at layer 1" in words
    assert f"{np.exp(6):.3g} at first and {np.e:.3g} at the end" in words
    assert "Layer 1 lowers it most, by 4 nats; it is the layer of the largest fall in 3 of 3 series." in words
    assert "rises" not in words


def test_entropy_that_rises_is_said_to_rise(results):
    ds = results["lens"]
    ds["entropy"][1] = 7.0
    words = " ".join(read.read_entropy(ds))
    assert "It rises in layer 0" in words


def test_logit_map_finds_the_layer_that_settles(results):
    words = " ".join(read.read_logit_map(results["lens"], 0))
    assert "at 0 % of the steps; from layer 0 on it is at half of them and more" in words
    # the embedding's mode is 0, the truth 10 to 14
    assert "is 12 m at the embedding and 0 m at layer 1" in words


def test_logit_map_where_only_the_last_layer_settles(results):
    ds = results["lens"]
    ds["probability"][1] = ds["probability"].values[0]
    assert "only the last layer settles it" in read.read_logit_map(ds, 0)[0]


def test_lens_forecast_measures_the_way_left(results):
    words = " ".join(read.read_lens_forecast(results["patches"], 0))
    assert "is 8 m away from the final one" in words
    assert "before the last layer it is 2 m away" in words
    assert "Against the truth layer 1 is closest (0 m)." in words


def test_gain_names_the_best_layer_and_admits_none(results):
    mae, rmse = read.read_gain(results["gain"])
    assert mae == (
        "MAE: layer 0 lowers the error most, by 20 % in the median; it lowers it in 2 of 3 series; layer 1 raises it."
    )
    assert rmse == "RMSE: no layer lowers the error in the median; layer 0 and layer 1 raise it."


def test_ablation_ranks_heads_and_mlps(results):
    words = " ".join(read.read_ablation(results["ablation"], "spearman_distance"))
    assert "moves the forecast most is decoder.1.cross_attn.1 (Spearman distance 0.8 in the median, 0.8 to 0.8" in words
    assert "The MLP whose removal moves the forecast most is decoder.0.mlp (Spearman distance 0.3" in words
    # 0.8 of 0.8 + 5 * 0.1
    assert "1 of 6 heads make up half" in words
    change = " ".join(read.read_ablation(results["ablation"], "mase_change"))
    assert "raises the MASE most is decoder.1.cross_attn.1 (+65 %" in change
    assert "For 5 of 6 heads, removing that head alone lowers the error." in change


def test_ablation_forecast_measures_the_move(results):
    (words,) = read.read_ablation_forecasts(results["ablation"], 0, ["decoder.1.cross_attn.1"])
    # 4 * 0.8 above a forecast that runs through 4 m
    assert "moves by 3.2 m on average, 80 % of the range" in words


def test_attribution_names_signs_sums_and_gap(results):
    words = " ".join(read.read_attribution(results["attribution"], "expected_value", 0))
    assert "decoder.0.mlp (+3), decoder.1.cross_attn.0 (−1)" in words
    assert "positive ones sum to +3, all negative ones to −1" in words
    assert "completeness error is 25 %: so much of the whole is unexplained" in words
    exact = " ".join(read.read_attribution(results["attribution"], "logit", 0))
    assert "up to rounding they add up" in exact
    steps = " ".join(read.read_attribution_steps(results["attribution"], "expected_value", 0))
    assert "decoder.1.cross_attn.0 changes most over the steps: from −2 (step 4)" in steps
    assert "decoder.0.mlp has the largest contribution at 5 of 5 steps" in steps


def test_attention_tells_sharp_diffuse_and_resting_heads(results):
    words = " ".join(read.read_attention(results["attention"]))
    assert "The sharpest is layer 0, head 0 (entropy 0 nats)" in words
    assert f"the most diffuse layer 0, head 1 ({np.log(25):.3g} of at most {np.log(25):.3g} nats)" in words
    assert "special tokens in layer 1, head 0 and layer 1, head 1." in words
    (lag,) = read.read_attention_map(results["attention"], 0, 0)
    assert "most often 7 steps back (the largest weight of 5 of 5 queries)" in lag


@pytest.mark.parametrize("width", [2, 7])
def test_head_entropy_of_a_uniform_head(width):
    pattern = np.full((1, 1, 3, width), 1 / width)
    np.testing.assert_allclose(read.head_entropy(pattern), np.log(width))

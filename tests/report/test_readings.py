"""Readings state planted truths."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import planted
from tsfm_lens.probes.findings import judge
from tsfm_lens.viz.attention import head_entropy, read_attention, read_attention_map, read_head_entropy
from tsfm_lens.viz.attribution import (
    read_attribution,
    read_attribution_over_series,
    read_attribution_steps,
    read_shares,
)
from tsfm_lens.viz.forecast import read_forecast
from tsfm_lens.viz.logit_lens import read_entropy, read_gain, read_lens_forecast, read_logit_map
from tsfm_lens.viz.parroting import read_lag, read_parroting, read_seasons
from tsfm_lens.viz.rollout import read_flow, read_norm_weighted, read_rollout
from tsfm_lens.viz.spectra import (
    read_bandwidths,
    read_bound,
    read_entropic_rank,
    read_head_similarity,
    read_layer_similarity,
    read_spectra,
    read_stable_rank,
    read_tilt,
)
from tsfm_lens.viz.words import is_head, nats_of, num, signed
from tsfm_lens.viz.zero_ablation import read_ablation, read_ablation_forecasts


def test_forecast_counts_what_the_band_holds(results):
    words = read_forecast(results["forecast"], 0)
    assert words[0] == "The median forecast of a starts at 11 m and ends at 15 m after 5 steps."
    assert "80 % band is 4 m wide at the first step and 1 m at the last" in words[1]
    assert "within the band in 3 of 5 steps" in words[2]
    assert "the median misses it by 1 m on average" in words[2]
    # the last context value is 9, the truth 10 to 14
    assert "repeating the last observed value would have missed it by 3 m" in words[2]


def test_forecast_without_truth_judges_nothing(results):
    assert len(read_forecast(results["forecast"].drop_vars("truth"), 0)) == 2


def test_entropy_names_the_layer_of_the_largest_fall(results):
    words = " ".join(read_entropy(results["lens"]))
    assert "6 nats at the embedding to 1 nats at layer 1" in words
    assert f"{np.exp(6):.3g} at first and {np.e:.3g} at the end" in words
    assert "Layer 1 lowers it most, by 4 nats on average." in words
    assert "rises" not in words


def test_entropy_that_rises_is_said_to_rise(results):
    ds = results["lens"]
    ds["entropy"][1] = 7.0
    words = " ".join(read_entropy(ds))
    assert "It rises in layer 0" in words


def test_logit_map_finds_the_layer_that_settles(results):
    words = " ".join(read_logit_map(results["lens"], 0))
    assert "at 0 % of the steps; from layer 0 on it is at half of them and more" in words
    # the embedding's mode is 0, the truth 10 to 14
    assert "is 12 m at the embedding and 0 m at layer 1" in words


def test_logit_map_where_only_the_last_layer_settles(results):
    ds = results["lens"]
    ds["probability"][1] = ds["probability"].values[0]
    assert "only the last layer settles it" in read_logit_map(ds, 0)[0]


def test_lens_forecast_measures_the_way_left(results):
    words = " ".join(read_lens_forecast(results["patches"], 0))
    assert "is 8 m away from the final one" in words
    assert "before the last layer it is 2 m away" in words
    assert "Against the truth layer 1 is closest (0 m)." in words


def test_gain_names_the_best_layer_and_admits_none(results):
    mae, rmse = read_gain(results["gain"])
    # an interval of three values with a spread of ten points either side of -20 holds zero
    assert mae == "MAE: layer 1 raises the error."
    assert rmse == "RMSE: layer 0 and layer 1 raise the error."
    steady = results["gain"]
    steady["gain"][0, 1] = [-21.0, -20.0, -19.0]
    mae, _ = read_gain(judge(steady, "gain", floor=0.0, signed=True, groups="metric"))
    assert mae.startswith("MAE: layer 0 lowers the error most, by 20 %, 22.5 % to 17.5 % over 3 series; layer 1 raises")
    none = read_gain(judge(steady, "gain", floor=50.0, signed=True, groups="metric"))
    assert none[0] == "MAE: no layer changes the error by more than the noise."


def test_ablation_ranks_heads_and_mlps(results):
    words = " ".join(read_ablation(results["ablation"], "spearman_distance"))
    assert "removal changes the order of the steps most is decoder.1.cross_attn.1 (Spearman distance 0.8)" in words
    assert "The MLP whose removal changes the order of the steps most is decoder.0.mlp (Spearman distance 0.3)" in words
    assert "6 of 6 heads stand out of the noise" in words
    # 0.8 of 0.8 + 5 * 0.1
    assert "1 of 6 heads makes up half" in words
    change = " ".join(read_ablation(results["ablation"], "mase_change"))
    assert "raises the MASE most is decoder.1.cross_attn.1 (+65 %" in change


def test_where_no_component_stands_out_none_is_named(results):
    ds = results["ablation"].drop_vars([name for name in results["ablation"] if "distance_" in str(name)])
    n = ds.sizes["series"]
    assert n >= 3
    # every head is the largest on one series or other
    noise = np.random.default_rng(0).normal(size=ds["spearman_distance"].shape)
    ds["spearman_distance"] = (ds["spearman_distance"].dims, 0.5 + 0.2 * noise)
    kinds = ["head" if head >= 0 else kind for kind, head in zip(ds["kind"].values, ds["head"].values, strict=True)]
    words = " ".join(read_ablation(judge(ds, "spearman_distance", floor=0.01, groups=kinds), "spearman_distance"))
    assert "No head leads" in words
    assert "No MLP leads" in words
    assert not any(name in words for name in ds["component"].values)


def test_ablation_forecast_measures_the_move(results):
    (words,) = read_ablation_forecasts(results["ablation"], 0, ["decoder.1.cross_attn.1"])
    # 4 * 0.8 above a forecast that runs through 4 m
    assert "moves by 3.2 m on average, 80 % of the range" in words


def test_attribution_names_signs_sums_and_gap(results):
    words = " ".join(read_attribution(results["attribution"], "expected_value", 0))
    assert "decoder.0.mlp (+3), decoder.1.cross_attn.0 (−1)" in words
    assert "positive ones sum to +3, all negative ones to −1" in words
    assert "completeness error is 25 %: so much of the whole is unexplained" in words
    over = read_attribution_over_series
    assert over(results["attribution"], "expected_value") == [
        "Over all series decoder.1.cross_attn.0 contributes most of all heads, as a share of the sizes of all "
        "contributions (−25 %).",
        "Over all series decoder.0.mlp contributes most of all MLPs, as a share of the sizes of all contributions "
        "(75 %).",
    ]
    drowned = judge(results["attribution"], "attribution_share", floor=9.0, signed=True, groups="decomposition")
    assert over(drowned, "logit") == ["Over all series no head and no MLP contributes more than every other."]
    exact = " ".join(read_attribution(results["attribution"], "logit", 0))
    assert "up to rounding they add up" in exact
    steps = " ".join(read_attribution_steps(results["attribution"], "expected_value", 0))
    assert "decoder.1.cross_attn.0 changes most over the steps: from −2 (step 4)" in steps
    assert "decoder.0.mlp has the largest contribution at 5 of 5 steps" in steps


def test_attention_tells_sharp_diffuse_and_resting_heads(results):
    words = " ".join(read_attention(results["attention"]))
    assert "On a the sharpest is layer 0, head 0 (entropy 0 nats)" in words
    assert f"the most diffuse is layer 0, head 1 ({np.log(25):.3g} of at most {np.log(25):.3g} nats)" in words
    assert "special tokens in layer 1, head 0 and layer 1, head 1." in words
    (lag,) = read_attention_map(results["attention"], 0, 0)
    assert "most often 7 steps back (the largest weight of 5 of 5 queries)" in lag
    (resting,) = read_attention_map(results["attention"], 1, 0)
    assert resting.startswith("Its queries give ")
    assert "of their attention to special tokens" in resting


def looking_at(*keys: int | None) -> xr.Dataset:
    """A head whose queries give half of their weight to one key, the rest evenly; None: all of it evenly."""
    rows = np.full((len(keys), 25), 1 / 25)
    for row, key in zip(rows, keys, strict=True):
        if key is not None:
            row[:] = [0.5 if place == key else 0.5 / 24 for place in range(25)]
    places = planted.tokens("key", range(-24, 0), special="EOS") | planted.tokens("query", range(len(keys)))
    return planted.attention(pattern=rows[None, None], places=places)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        # the lags 24 to 28 come once each: the key is what they share
        ((0, 0, 0, 0, 0), "5 of its 5 queries look most at step -24 (2001-01-01 00:00), whatever the distance; "),
        ((0, 0, 0, 9, 17), "3 of its 5 queries look most at step -24 "),
        ((3, 4, 5, 0, 0), "Its queries look most often 21 steps back (the largest weight of 3 of 5 queries); "),
        ((0, 5, 3, 9, 17), "no distance and no token has the largest weight of more than 1 of 5 queries; "),
        ((0, 0, 3, 9, 17, 11, 6), "no distance and no token has the largest weight of more than 2 of 7 queries; "),
        ((5,), "Of all steps its one query looks most at step -19 (2001-01-06 00:00), 19 steps back, with a weight"),
        ((None, None), "None of its queries gives one token more of its attention than every other."),
        # weights alike are no look at the first key
        ((None, None, None, 23, 23), "2 of its 5 queries look most at step -1 "),
    ],
)
def test_where_queries_look_is_told_by_what_most_of_them_share(keys, told):
    (words,) = read_attention_map(looking_at(*keys), 0, 0)
    assert told in words
    assert words.endswith(".")


def test_the_steps_of_a_patch_are_told_with_the_date_of_the_first():
    ends = tuple(range(-20, 4, 4))
    places = planted.tokens("key", [end - 4 for end in ends], ends) | planted.tokens("query", [0])
    pattern = np.eye(6)[None, None, 2:3]
    (words,) = read_attention_map(planted.attention(pattern=pattern, places=places), 0, 0)
    assert "looks most at steps -16 to -13 (from 2001-01-09 00:00), 16 steps back, with a weight of 1." in words


def test_the_largest_entropy_counts_the_keys_that_a_query_may_see():
    causal = np.tril(np.ones((24, 24)))
    # keys of padding that no query may see
    causal = np.pad(causal, ((0, 0), (3, 0))) / causal.sum(axis=1, keepdims=True)
    places = planted.tokens("key", range(-3, 24)) | planted.tokens("query", range(24))
    words = read_attention(planted.attention(pattern=causal[None, None], places=places))[0]
    most = np.log(np.arange(1, 25)).mean()
    assert f"({most:.3g} of at most {most:.3g} nats)" in words
    assert f"{most:.2f}" == "2.28"


@pytest.mark.parametrize("width", [2, 7])
def test_head_entropy_of_a_uniform_head(width):
    pattern = np.full((1, 1, 3, width), 1 / width)
    np.testing.assert_allclose(head_entropy(pattern), np.log(width))


def test_stable_ranks_and_spectra_count_directions(results):
    ds = results["spectra"]
    words = " ".join(read_stable_rank(ds, "QK"))
    assert "from 1 (layer 0, head 0) to 4 (layer 1, head 1); the largest possible is 4." in words
    assert "lowest in layer 0 (1.5) and highest in layer 1 (3.5)" in words
    # of equal singular values nine tenths need all; the heads have 1, 2, 3 and 4 of them
    assert "lie in 2 of 4 directions for the median head, 1 to 4" in read_spectra(ds, "QK")[0]
    zero = ds.copy()
    zero["singular_value"], zero["stable_rank"] = ds["singular_value"] * 0, ds["stable_rank"] * np.nan
    assert read_spectra(zero, "QK") == read_stable_rank(zero, "QK")


def test_entropic_rank_names_layers_and_the_spread_of_series(results):
    words = " ".join(read_entropic_rank(results["entropic_rank"]))
    assert "most directions in layer 1 (3 of at most 5) and in fewest in layer 0 (2)" in words
    assert "The series differ most in layer 1: from 2 to 4.5." in words


def test_similarities_name_the_pairs(results):
    layers = results["layer_similarity"]
    assert "between layer 0 and layer 1 (CKA 0.25)" in read_layer_similarity(layers, "cka")[0]
    assert "(cosine −0.5)" in read_layer_similarity(layers, "update_cosine")[0]
    layers["cka"][0] = np.nan
    layers["cka"][:, 0] = np.nan
    assert "At the embedding the stream is the same" in " ".join(read_layer_similarity(layers, "cka"))
    words = " ".join(read_head_similarity(results["head_similarity"]))
    assert "Most alike are heads 0 and 2 of layer 1 (+0.75), least alike heads 0 and 1 of layer 0 (−0.25)." in words
    assert "Layer 1 has the largest mean over pairs, +0.25." in words


def test_kernels_name_widths_tilts_and_what_the_bound_says(results):
    ds = results["kernel"]
    (words,) = read_bandwidths(ds)
    # widths 1, 2, 4 in three heads and 0.5, 2, 4 in the other
    assert "layer 0, head 1, with a bandwidth of 0.5" in words
    assert "is 4 times as wide" in words
    assert (
        "strongest in layer 1, head 0 (2); it varies as much as the scores themselves, or more, in 1 of 4"
        in (read_tilt(ds)[0])
    )
    words = " ".join(read_bound(ds))
    assert "hold for 7 of 8 heads and queries, and the bound is below 1 for 2 of them" in words
    assert "There it is 2 times what is measured" in words
    assert "exceeded nowhere" in words
    ds["missing"][1, 1, 0] = 0.5
    assert "exceeded 1 times" in " ".join(read_bound(ds))
    assert read_bound(ds.assign(applicable=ds["applicable"] & False))[0].startswith("The conditions")


def test_head_entropy_counts_the_sharp_by_layer(results):
    words = " ".join(read_head_entropy(results["head_entropy"]))
    assert "the sharpest is layer 0, head 0 (0 nats), the most diffuse is layer 1, head 1 (4 nats)." in words
    assert "2 of 4 heads are sharp; most of them, 2, in layer 0." in words


def test_rollouts_find_the_head_that_reads_at_a_lag(results):
    sharp, diffuse = (
        " ".join(read_rollout(results["autoregressive_attention"], word)) for word in ("sharp", "diffuse")
    )
    assert "On a the sharpest is layer 0, head 0 (0 nats)." in sharp
    assert "1 of 4 heads has its largest weight at one and the same lag" in sharp
    assert "of the queries: layer 0, head 0." in sharp
    assert f"layer 0, head 1 ({np.log(25):.3g} nats)." in diffuse
    assert "Of the attention of layer 0, head 1, 4 % is on special tokens." in diffuse


def test_flow_says_what_tokens_keep_and_where_the_rest_is_from(results):
    words = " ".join(read_flow(results["flow"]))
    # the first token has 1 of itself, the three others 0.3
    assert "keeps 100 % of itself on average, after layer 1 47.5 %" in words
    # 1 and three times 0.7
    assert "Step -4 reaches the others most: 77.5 % of a token on average, where an even flow would bring 25 %" in words
    alone = results["flow"].isel(query=[0], key=[0])
    assert read_flow(alone) == ["There is a single token, which can only keep what it has."]


def test_norms_tell_attention_from_contribution(results):
    words = " ".join(read_norm_weighted(results["norm_weighted"]))
    # every weight of a one-hot head counts twice; 0.2 of layer 1 is on a real step, 0.045 on EOS
    assert "longest in layer 0, head 0 (2 on average)" in words
    assert "Special tokens make up most of it in none of the 4 heads" in words
    assert f"{100 * 0.045 / 0.245:.3g} %" in words


def test_parroting_weighs_copies_against_the_truth(results):
    first, _, last = (read_parroting(results["parroting"], i) for i in range(3))
    assert "repeated at lag 7 the forecast of a is 0 standard deviations" in first[0]
    assert "last 4 steps, 9 steps back, is 0.5 away" in first[1]
    # forecast 3 + h, truth 10 + h
    spread = float(np.std(np.arange(24.0)))
    assert f"From the truth it is {7 / spread:.3g} away: it is nearer to a copy of its context" in first[2]
    assert last == ["The context of c is too short or constant, so there is nothing to copy."]


def test_lags_are_weighed_against_chance(results):
    words = " ".join(read_lag(results["lag"]))
    assert "10 % of the attention would be at lag 12" in words
    assert "1 of 4 heads pay more than twice that, most of all layer 1, head 1 (90 %)" in words
    even = results["lag"].assign(chance=((), 0.5))
    assert read_lag(even)[0].endswith("no head pays more than twice that.")
    wide = results["lag"].assign(chance=((), 1.0))
    assert "tells nothing about the lag" in read_lag(wide)[0]


def test_seasons_say_what_is_kept_and_flattened(results):
    words = " ".join(read_seasons(results["seasonality"]))
    assert "a 50 % (period 4), b 50 % (period 4) and c 50 % (period 4)" in words
    assert "weaker than the truth's in 3 of 3 series" in words
    assert "less than a quarter as much as the context in a." in words
    assert "At the patch length of 3 steps it differs most from the context in a, by +0.5" in words


def test_heads_that_cannot_be_told_apart_are_named_together():
    entropy = np.array([[0.0, 1.0], [1e-6, 2.0]])
    ds = xr.Dataset({"entropy": (("layer", "head"), entropy)}, coords={"layer": ["0", "1"], "head": [0, 1]})
    assert is_head(ds, entropy, 0, nats_of) == "are layer 0, head 0 and layer 1, head 0"
    assert is_head(ds, entropy, 3, nats_of) == "is layer 1, head 1"
    assert is_head(ds, np.zeros((2, 2)), 0, nats_of) == "are 4 heads alike"


def test_numbers_below_a_million_are_written_out_with_a_true_minus():
    assert [num(v) for v in (3951.2, -0.25, 999.9, 2e7)] == ["3951", "−0.25", "1000", "2e+07"]
    assert [signed(v) for v in (4123.0, -4.0)] == ["+4123", "−4"]


def test_shares_of_the_stream_are_the_means_that_the_figure_draws(results):
    share = np.array([[0.1, 0.1, 0.4], [0.9, 0.9, 0.6]])
    kinds = ["self_attn", "mlp"]
    ds = xr.Dataset({"share": (("writer", "series"), share)}, coords={"kind": ("writer", kinds)})
    assert "20 % by self-attention and 80 % by the MLPs" in read_shares(ds)[0]

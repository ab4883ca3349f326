"""Readings state planted truths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import planted
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import find_figures
from tsfm_lens.viz.attention import (
    read_attention,
    read_attention_map,
)
from tsfm_lens.viz.attribution import (
    read_attribution,
    read_attribution_over_series,
    read_attribution_steps,
)
from tsfm_lens.viz.circuits import read_circuit, read_circuit_forecasts
from tsfm_lens.viz.forecast import read_forecast
from tsfm_lens.viz.head_states import read_explore
from tsfm_lens.viz.kernel_regression import read_bound
from tsfm_lens.viz.logit_lens import (
    read_entropy,
    read_gain,
    read_lens_forecast,
    read_logit_map,
)
from tsfm_lens.viz.parroting import read_lag, read_parroting, read_seasons
from tsfm_lens.viz.patching import (
    read_agreement,
    read_estimate,
    read_patching,
)
from tsfm_lens.viz.path_patching import read_paths
from tsfm_lens.viz.rollout import read_flow, read_rollout
from tsfm_lens.viz.similarity import read_layer_similarity
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.weights import read_spectra
from tsfm_lens.viz.words import signed
from tsfm_lens.viz.zero_ablation import read_ablation, read_ablation_forecasts

Reader = Callable[..., Any]


def reader_of(kind: str) -> Reader:
    """What the figures of a kind declare to say."""

    def sentences(ds: xr.Dataset) -> list[str]:
        readers = [
            figure.sentences for figure in find_figures(kind) if figure.sentences
        ]
        return [text for read in readers for text in read(ds)]

    sentences.__name__ = kind
    return sentences


MOST = f"{np.log(25):.3g}"
SPREAD = float(np.std(np.arange(24.0)))
READINGS: list[tuple[Reader, str, tuple[Any, ...], tuple[str, ...]]] = [
    (
        read_forecast,
        "forecast",
        (0,),
        ("forecast of a rises by 4 m over 5 steps", "from 11 m to 15 m"),
    ),
    (
        read_forecast,
        "forecast",
        (0,),
        ("80 % band is 4 m wide at the first step and 1 m at the last",),
    ),
    # the context ends in 8, 9; the truth is 10 to 14
    (
        read_forecast,
        "forecast",
        (0,),
        (
            "at 3 of 5 steps",
            "less than the 3.6 m of the last season repeated (2 steps)",
        ),
    ),
    # other heads may move it more: a report names the kind and the head as other
    # sections do
    (
        *(read_explore, "head_states", ()),
        (
            "decoder cross-attention whose ablation moves the forecast most",
            ": decoder.1.cross_attn.2 (12",
            "write most, on average: decoder.1.cross_attn.2",
        ),
    ),
    (
        read_entropy,
        "lens",
        (),
        (
            "6 nats at the embedding to 1 nats at layer 1",
            "layer 1 (−4 nats)",
        ),
    ),
    (
        read_logit_map,
        "lens",
        (0,),
        ("0 % at the embedding", "layers: 2 of 3 (layer 0 and layer 1)"),
    ),
    (
        read_lens_forecast,
        "patches",
        (0,),
        ("to the final one", "8 m at", "Closest to the truth: layer 1 (0 m)"),
    ),
    (
        read_gain,
        "gain",
        (),
        ("layer 0 (−20 %", "layer 1 (+"),
    ),
    (
        *(read_ablation, "ablation_effects", ("spearman_distance",)),
        (
            (
                "Largest Spearman distance without one head: decoder.1.cross_attn.1"
                " (0.8), "
            ),
            "6 of 6 heads act above rounding on all 3 series; 6 of 6 by 1 % or more.",
            (
                "3 series are too few for 40 tests on other series like these; 10 are"
                " needed."
            ),
        ),
    ),
    (
        read_ablation,
        "ablation_effects",
        ("mase_change",),
        ("Largest change of MASE without one head: decoder.1.cross_attn.1 (65 %",),
    ),
    # 4 * 0.8 above a forecast that runs through 4 m
    (
        read_ablation_forecasts,
        "ablation_effects",
        (0, ["decoder.1.cross_attn.1"]),
        ("moves by 3.2 m on average", "80 % of its"),
    ),
    (
        *(read_attribution, "attribution", ("expected_value", 0)),
        (
            "decoder.0.mlp raises it (3)",
            "decoder.1.cross_attn.0 lowers it (1)",
            "Completeness error of the sum: 25 %",
        ),
    ),
    (
        read_attribution,
        "attribution",
        ("logit", 0),
        ("Completeness error of the sum: ",),
    ),
    (
        *(read_attribution_over_series, "attribution", ("expected_value",)),
        ("as shares of all sizes: decoder.", "decoder.1.cross_attn.0 (25 %)"),
    ),
    (
        *(read_attribution_steps, "attribution", ("expected_value", 0)),
        (
            "between two steps",
            "decoder.1.cross_attn.0 (",
        ),
    ),
    (
        *(read_attention, "attention_patterns", ()),
        (
            "layer 0, head 0 (0 nats)",
            f"layer 0, head 1 ({MOST} nats), of at most {MOST} nats",
        ),
    ),
    (
        read_attention_map,
        "attention_patterns",
        (0, 0),
        ("at one lag: 5 of 5, at 7",),
    ),
    (
        read_attention_map,
        "attention_patterns",
        (1, 0),
        ("Its queries give ", "of their attention to special tokens"),
    ),
    (
        *(read_spectra, "head_spectra", ("QK",)),
        ("layer 0, head 0 (1); highest: layer 1, head 1 (4)", "largest possible is 4."),
    ),
    # of equal singular values nine tenths need all; the heads have 1, 2, 3 and 4 of
    # them
    (
        read_spectra,
        "head_spectra",
        ("QK",),
        ("lie in 2.5 of 4 directions for the median head (1 to 4",),
    ),
    (
        reader_of("entropic_rank"),
        "entropic_rank",
        (),
        ("in layer 1 (3)", "There are 5 heads", "in layer 1 (2.5)"),
    ),
    (
        read_layer_similarity,
        "layer_similarity",
        ("cka",),
        ("layer 0 and layer 1 (+0.25)",),
    ),
    (read_layer_similarity, "layer_similarity", ("update_cosine",), ("(−0.5)",)),
    # widths 1, 2, 4 in three heads and 0.5, 2, 4 in the other
    (
        reader_of("kernel_regression"),
        "kernel",
        (),
        ("layer 0, head 1 (0.5)", "has 4 times that bandwidth"),
    ),
    (
        read_bound,
        "kernel",
        (),
        ("layer 1, head 0 (2). It varies at least as much as the scores in 1 of 4",),
    ),
    (
        read_bound,
        "kernel",
        (),
        (
            "hold for 7 of 8 heads and queries",
            "2 times the measured",
            "exceeded 0 times",
        ),
    ),
    (
        *(reader_of("head_entropy"), "head_entropy", ()),
        ("layer 0, head 0 (0 nats)", "layer 1, head 1 (4 nats)", "Sharp heads: 2 of 4"),
    ),
    (
        *(read_rollout, "autoregressive_attention", ("sharp",)),
        ("layer 0, head 0 (0 nats)",),
    ),
    (
        read_rollout,
        "autoregressive_attention",
        ("diffuse",),
        (f"layer 0, head 1 ({MOST} nats).", "special tokens: "),
    ),
    # each other token has 0.7 of the first token
    (
        read_flow,
        "flow",
        (),
        (
            "100 % at layer 0 to 47.5 % at layer 1",
            "step -4 (70 %",
        ),
    ),
    # every weight of a one-hot head counts twice
    (
        reader_of("norm_weighted_attention"),
        "norm_weighted_attention",
        (),
        ("in layer 0, head 0 (2)",),
    ),
    (
        read_parroting,
        "context_parroting",
        (0,),
        (
            "forecast of a is 0 standard deviations",
            "repeated at lag 7",
            "(9 steps back), is 0.5 away",
        ),
    ),
    # forecast 3 + h, truth 10 + h
    (
        read_parroting,
        "context_parroting",
        (0,),
        (f"The truth is {7 / SPREAD:.3g} away, so the forecast is nearer to a copy",),
    ),
    (
        read_parroting,
        "context_parroting",
        (2,),
        ("The context of c is too short or constant, so there is nothing to copy.",),
    ),
    (
        read_lag,
        "lag",
        (),
        (
            "Uniform attention would put 10 % at lag 12",
            "layer 1, head 1 (90 %)",
        ),
    ),
    (
        read_seasons,
        "seasonality_bias",
        (),
        ("a (50 %), b (50 %)", "a (4)", "weaker than the truth's in 3 of 3 series"),
    ),
    (
        *(read_patching, "activation_patching", (0,)),
        (
            "are 4 m apart on average",
            (
                "the EOS token (100 %) and the stream before layer 1, steps −12 to −1"
                " (75 %)"
            ),
        ),
    ),
    # 0.5 in one of nine cells
    (
        read_estimate,
        "attribution_patching",
        (0,),
        ("by 0.0556 on average", "(0.5)"),
    ),
    (read_agreement, "attribution_patching", (), ("correlation is 0.9",)),
    (read_estimate, "attribution_patching", (0,), ("steps −12 to −1 (+1.25)",)),
    (
        read_paths,
        "path_patching",
        (),
        (
            "decoder.0.cross_attn.0 → output (+0.5)",
            "decoder.0.cross_attn.0 → decoder.1.mlp (−0.25)",
        ),
    ),
    (
        *(read_circuit, "minimal_circuit", ()),
        (
            *(
                "kept: 3 of 8, namely cross-attention (2) and MLP (1)",
                "90 %",
                "80 %",
            ),
            *("minimal up to pairs", "decoder.0.cross_attn.1 (8 %)."),
        ),
    ),
    (
        read_circuit_forecasts,
        "minimal_circuit",
        (0,),
        ("circuit (1 m)", "complement (8 m)"),
    ),
]


@pytest.fixture(scope="module")
def truths() -> dict[str, xr.Dataset]:
    """Results that no test changes."""
    return planted.in_report()


@pytest.mark.parametrize(
    ("read", "name", "how", "phrases"),
    READINGS,
    ids=[reading[0].__name__ for reading in READINGS],
)
def test_a_reading_states_the_planted_truth(
    truths: dict[str, xr.Dataset],
    read: Reader,
    name: str,
    how: tuple[Any, ...],
    phrases: tuple[str, ...],
) -> None:
    assert [
        phrase for phrase in phrases if phrase not in " ".join(read(truths[name], *how))
    ] == []


def test_rounding_shares_are_no_forecast_shares(results):
    """A share within rounding is not called a share of the forecast."""
    steady = results["gain"]
    steady["gain"][0, 1] = [-21.0, -20.0, -19.0]
    mae = read_gain(
        add_estimates(
            steady, "gain", floor=0.0, signed=True, smallest=1.0, groups="metric"
        )
    )[0]
    assert "(median and range over 3 series)" in mae
    assert "layer 0 (−20 %, −21 % to −19 %)" in mae
    none = read_gain(
        add_estimates(
            steady, "gain", floor=50.0, signed=True, smallest=1.0, groups="metric"
        )
    )
    assert none[0].endswith("none of 1 % or more.")
    drowned = add_estimates(
        results["attribution"], "size_share", floor=9.0, groups="decomposition"
    )
    assert "none of 1 % or more" in read_attribution_over_series(drowned, "logit")[0]
    parts = results["attribution"]
    single = parts.assign(
        attribution=parts["attribution"].where(
            parts["component"] == "decoder.0.mlp", -0.0
        )
    )
    text = " ".join(read_attribution(single, "expected_value", 0))
    assert [
        part in text
        for part in (": decoder.0.mlp raises it (", "take 0 ", "cross_attn")
    ] == [True, True, False]
    silent = read_attribution(
        parts.assign(attribution=-0.0 * parts["attribution"]), "expected_value", 0
    )
    assert (silent[0].endswith(": none."), signed(-0.0)) == (True, "+0")
    drowned = add_estimates(
        results["activation_patching"], "recovered", floor=2.0, signed=True
    )
    assert "none of 1 % or more" in read_patching(drowned, 0)[1]
    with pytest.raises(InputError, match="has no test of recovered"):
        read_patching(drowned.drop_vars("recovered_size"), 0)


def test_statements_follow_sizes_in_own_sentences(results):
    """Sixteen series decide among all components; of six heads one is large on all, one
    on some.
    """
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in range(16)]
    ds = planted.ablation(planted.series(ids, apart=1.0), floor=1e-6)
    heads = np.flatnonzero(ds["head"].values >= 0)
    effect = 0.001 * rng.random((ds.sizes["component"], 16))
    effect[heads[2]], effect[heads[4], :3] = 0.4 + rng.random(16), 2.0
    ds["spearman_distance"] = (("component", "series"), effect)
    text = read_ablation(
        add_estimates(ds, "spearman_distance", floor=1e-6), "spearman_distance"
    )
    name = str(ds["component"].values[heads[2]])
    head = (
        "Largest Spearman distance without one head (median and range over 16 series)"
    )
    assert text[0].startswith(f"{head}: {name} (")
    assert "MLP" in text[1]
    assert text[1].endswith("none of 0.01 or more.")
    assert text[2].startswith(f"{name}: largest in ")
    assert text[2].endswith(
        " % of bootstrap samples of series, significantly larger than the rest."
    )
    # what is said of the size of the shift stands between
    assert (
        text[-4]
        == "6 of 6 heads act above rounding on all 16 series; 1 of 6 by 1 % or more."
    )
    assert text[-3].startswith(
        f"Significant for other series like these: 1 of 6: {name} (sign tests over 16"
        " series, "
    )
    assert "untrained twins" in text[-2]
    assert "--twins" in text[-2]


def make_pattern(*keys: int | None) -> xr.Dataset:
    """A head whose queries give half of their weight to one key, the rest evenly; None:
    all of it evenly.
    """
    rows = np.full((len(keys), 25), 1 / 25)
    for row, key in zip(rows, keys, strict=True):
        if key is not None:
            row[:] = [0.5 if position == key else 0.5 / 24 for position in range(25)]
    positions = planted.tokens("key", range(-24, 0), special="EOS") | planted.tokens(
        "query", range(len(keys))
    )
    return planted.attention(pattern=rows[None, None], places=positions)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        # the lags 24 to 28 come once each: the key is what they share
        (
            (0, 0, 0, 0, 0),
            "5 of 5, at step -24 (from 2001-01-01 00:00)",
        ),
        (
            (3, 4, 5, 0, 0),
            "3 of 5, at 21;",
        ),
        (
            (0, 0, 3, 9, 17, 11, 6),
            "2 of 7",
        ),
        (
            (5,),
            "1 of 1, at 19; at one token: 1 of 1, at step -19 (from 2001-01-06 00:00)",
        ),
        ((None, None), "None of its queries has a single largest weight."),
        # weights alike are no look at the first key
        ((None, None, None, 23, 23), "2 of 5, at step -1 (from 2001-01-24 00:00)"),
    ],
)
def test_query_targets_describe_most_queries(keys, sentence):
    """Where queries look is described by what most of them share."""
    (text,) = read_attention_map(make_pattern(*keys), 0, 0)
    assert sentence in text
    assert text.endswith(".")


def test_largest_entropy_counts_visible_keys():
    """The largest entropy counts the keys that a query may see."""
    causal = np.tril(np.ones((24, 24)))
    # keys of padding that no query may see
    causal = np.pad(causal, ((0, 0), (3, 0))) / causal.sum(axis=1, keepdims=True)
    positions = planted.tokens("key", range(-3, 24)) | planted.tokens(
        "query", range(24)
    )
    text = read_attention(
        planted.attention(pattern=causal[None, None], places=positions)
    )[0]
    most = np.log(np.arange(1, 25)).mean()
    assert f"({most:.3g} nats), of at most {most:.3g} nats" in text


def test_readings_admit_failing_definitions(results):
    """A reading says where a definition does not hold."""
    ds = results["kernel"]
    ds["missing"][1, 1, 0] = 0.5
    assert "exceeded 1 times" in " ".join(read_bound(ds))
    assert read_bound(ds.assign(applicable=ds["applicable"] & False))[0].startswith(
        "The conditions"
    )
    assert (
        "says nothing about the lag"
        in read_lag(results["lag"].assign(chance=((), 1.0)))[0]
    )


def test_effects_and_repair_show_sizes(results):
    """Effects and self-repair are described by their sizes."""
    ds = results["causal_effects"].isel(series=[0])
    largest, later, repair, acting, *_ = reader_of("causal_effects")(ds)
    assert (
        "decoder.1.mlp (70 %), decoder.1.cross_attn.2 (60 %) and decoder.1.cross_attn.1"
        " (50 %)" in largest
    )
    assert later.startswith("Largest total effects, with all that follows: ")
    assert "components act above rounding" in acting
    assert "add to it): decoder.1.mlp (100 %" in repair
    silent = reader_of("causal_effects")(add_estimates(ds, "direct_share", floor=2.0))
    assert silent[0].endswith("none of 1 % or more.")


def test_indistinguishable_heads_are_named_together():
    """Heads that cannot be told apart are named together."""
    entropy = np.array([[0.0, 1.0], [1e-6, 2.0]])
    ds = xr.Dataset(coords={"layer": [0, 1], "head": [0, 1]})
    text = summarize(
        ds,
        "{entropy:lowest nats}",
        "{entropy:highest nats}",
        "{alike:lowest}",
        noun="heads",
        entropy=labelled(ds, entropy, "layer", "head"),
        alike=labelled(ds, 0 * entropy, "layer", "head"),
    )
    assert text == [
        "layer 0, head 0 and layer 1, head 0 (0 nats)",
        "layer 1, head 1 (2 nats)",
        "4 equal heads (0)",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([-3.0], "forecast of a is −3 m."),
        ([5.0, 5.0, 5.0], "begins and ends at 5 m."),
        ([5.0, 7.0, 5.0 + 4e-7], "begins and ends at 5 m."),
        ([-3.0, -5.0], "falls by 2 m over 2 steps, from −3 m to −5 m."),
    ],
)
def test_direction_is_said_where_there_is_one(results, values, said):
    """A single step has no direction, and rounding is none."""
    ds = results["forecast"].isel(step=range(len(values)))
    flat = 0 * ds["quantile_forecast"] + xr.DataArray(values, dims="step")
    text = read_forecast(ds.assign(quantile_forecast=flat), 0)
    assert text[0].endswith(said)
    assert " at the last" not in " ".join(text) or len(values) > 1

"""Arguments that a probe cannot use are refused, with what it would take instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refusals import expect_error
from tiny_lenses import lens_of
from tiny_series import centred, make_runs, make_series
from tsfm_lens import explain, probes
from tsfm_lens.data import bundled
from tsfm_lens.models import Run
from tsfm_lens.probes.patching import _check_pair

TWO = ("co2", "elnino")
CONTRASTS = (
    "activation_patching",
    "attribution_patching",
    "edge_attribution",
    "path_patching",
)


def one_run(model: str, *names: str, horizon: int = 4) -> Run:
    return lens_of(model).run(make_series(lens_of(model), *names), horizon)


@pytest.mark.parametrize(
    ("probe", "options", "message"),
    [
        ("ablation_effects", {"components": []}, "components is empty"),
        ("attribution", {"tolerance": 0}, "tolerance is 0"),
        ("attention_patterns", {"kind": "crossattn"}, "Closest: cross_attn"),
        ("attention_rollout", {"stack": "encoders"}, "encoder"),
        ("autoregressive_attention", {"keys": "steps"}, "choose 'time' or 'window'"),
        ("causal_effects", {"components": []}, "components is empty"),
        ("causal_effects", {"smallest": 2}, "smallest is 2, expected a share"),
        ("context_parroting", {"motif": 1}, "motif is 1"),
        ("embedding_ranks", {"tokens": 1}, "tokens 1"),
        ("embedding_ranks", {"batch_size": 0}, "batch_size 0"),
        ("embedding_ranks", {"epsilon": 0}, "epsilon is 0"),
        ("embedding_ranks", {"signals": {"vocabulary": [[1.0, 2.0]]}}, "'vocabulary'"),
        ("entropic_rank", {"batch_size": 0}, "batch_size"),
        ("flow_of_ranks", {"batch_size": 0}, "batch_size is 0"),
        ("flow_of_ranks", {"epsilon": 1}, "epsilon is 1"),
        ("flow_of_ranks", {"stack": "encodr"}, "encoder"),
        ("head_parroting", {"lag": 40}, "lag is 40, expected 1 to 39"),
        ("head_parroting", {"motif": 1}, "motif is 1"),
        ("head_parroting", {"kind": "time_attn"}, "cross_attn"),
        ("lag_attention", {"lag": 0}, "lag 0"),
        ("logit_lens", {"logits": True}, "emits quantiles, not tokens"),
        ("lines_of_thought", {}, "emits quantiles, which have no modes"),
        ("stream_shares", {"decomposition": "guess"}, "'guess'"),
        ("ablation_recipes", {"recipes": {}}, "no recipe"),
        ("ablation_recipes", {"recipes": {"original": ["decoder.0.mlp"]}}, "original"),
        ("ablation_recipes", {"recipes": {"x": []}}, "'x'"),
        ("ablation_recipes", {"recipes": {"x": "decoder.0"}}, "list"),
        ("ablation_recipes", {"recipes": {"x": ["decoder.9.mlp"]}}, r"decoder\.9\.mlp"),
        ("minimal_circuit", {"ranking": "best"}, "ranking='best'"),
        ("minimal_circuit", {"ranking": "edges"}, "corrupted=…"),
        ("minimal_circuit", {"tolerance": "a"}, "expected a tolerance"),
        ("minimal_circuit", {"tolerance": float("nan")}, "expected a tolerance"),
        ("minimal_circuit", {"per_round": 1.5}, "expected a tolerance"),
        ("minimal_circuit", {"per_round": 0}, "expected a tolerance"),
        ("minimal_circuit", {"tolerance": 1}, "tolerance 1"),
        ("minimal_circuit", {"order": 3}, "order=3"),
        ("minimal_circuit", {"behaviour": "forecast"}, "expected a function"),
        (
            "minimal_circuit",
            {"behaviour": lambda forecasts: forecasts * np.nan},
            "no numbers",
        ),
        (
            "minimal_circuit",
            {"behaviour": lambda forecasts: forecasts.mean(-1) * 0},
            "does not change the behaviour",
        ),
        (
            "minimal_circuit",
            {"behaviour": lambda forecasts: forecasts.T},
            "the behaviour gives shape",
        ),
        (
            "minimal_circuit",
            {"nodes": ["decoder.0.cross_attn", "decoder.0.cross_attn.1"]},
            "is part of",
        ),
        (
            "minimal_circuit",
            {"nodes": ["decoder_blocks.0.hook_resid_pre"]},
            "is a residual stream",
        ),
        ("minimal_circuit", {"nodes": []}, "nodes is empty"),
        *(
            ("activation_patching", {"at": nothing}, "at is empty")
            for nothing in ([], ())
        ),
        *(
            ("activation_patching", {"at": wrong}, "expected components by name")
            for wrong in (None, 5, [5])
        ),
        ("activation_patching", {"direction": "up"}, "direction='up'"),
        (
            "activation_patching",
            {"at": ["encoder.0.mlp", "decoder.0.mlp"]},
            "decoder and encoder",
        ),
        ("activation_patching", {"positions": 0}, "positions=0"),
        ("activation_patching", {"positions": "some"}, "choose 'all', 'each'"),
        ("activation_patching", {"positions": [0, 2]}, "'each'.*lens.patch"),
        ("attribution_patching", {"positions": (0, 2)}, "'each'.*lens.patch"),
        *(
            (probe, {"at": "head"}, "'stream', 'branches', 'heads'")
            for probe in ("activation_patching", "attribution_patching")
        ),
        (
            "activation_patching",
            {"at": "encoder_blocks.0.self_attn.hook_q"},
            "not a residual stream",
        ),
        ("activation_patching", {"at": "encoder.0.mpl"}, r"encoder\.0\.mlp"),
        ("activation_patching", {"stack": "encode"}, "encoder"),
        ("edge_attribution", {"nodes": []}, "nodes is empty"),
        ("path_patching", {"senders": ()}, "senders is empty"),
        (
            "path_patching",
            {"senders": ["encoder_blocks.0.hook_resid_pre"]},
            "paths and circuits are made of heads",
        ),
    ],
)
def test_probes_refuse_unsuitable_runs(
    probe: str, options: dict[str, Any], message: str
) -> None:
    """A run is refused if its probe cannot use it."""
    if probe in CONTRASTS:
        runs = make_runs("chronos-bolt")
    else:
        runs = [one_run("chronos-bolt")]
    expect_error(message, getattr(probes, probe), *runs, **options)


@pytest.mark.parametrize(
    ("probe", "model", "options", "message"),
    [
        ("head_spectra", "chronos", {"kind": "cross"}, "cross_attn"),
        ("head_spectra", "chronos", {"stack": "encodr"}, "encoder"),
        ("head_spectra", "chronos", {"products": ["KQ"]}, "QK"),
        ("heads_by_stable_rank", "chronos", {"keep": {0: 5}}, "5 heads, it has 4"),
        ("heads_by_stable_rank", "chronos", {"keep": {7: 1}}, "'7'"),
        ("heads_by_stable_rank", "chronos", {"keep": {0: 1}, "order": "up"}, "'low'"),
        ("induction_scores", "chronos", {"motif": 32}, "at most 64 tokens"),
        ("induction_scores", "chronos", {"motif": 8, "offset": 2}, "offset is 2"),
        (
            "induction_scores",
            "chronos",
            {"motif": 8, "positions": "mean"},
            "is not known, choose 'last'",
        ),
        (
            "induction_scores",
            "chronos",
            {"motif": 8, "decoding": "free"},
            "decoding='free'",
        ),
        (
            "induction_scores",
            "chronos-bolt",
            {},
            "not an encoder-decoder model over value tokens",
        ),
        ("repeated_motif", "chronos-bolt", {"motif": 5}, "room for 4 tokens a motif"),
        ("repeated_motif", "chronos-bolt", {"motif": (1, 3)}, "motifs of 1 to 3"),
        ("repeated_motif", "chronos-bolt", {"motif": 3, "repeats": 1}, "repeats 1"),
        ("repeated_motif", "chronos-bolt", {"n_series": 0}, "n_series is 0"),
        ("repeated_motif", "chronos-bolt", {"queries": "all"}, "queries='all'"),
        ("repeated_motif", "chronos-bolt", {"kind": "attn"}, "cross_attn"),
        ("row_angles", "chronos", {"part": "W_in"}, "W_Q"),
        ("row_angles", "chronos", {"stack": "encodr"}, "encoder"),
        ("row_angles", "chronos", {"kind": "selfattn"}, "self_attn"),
        ("row_angles", "chronos", {"rows": 1}, "rows 1"),
        ("weight_ranks", "chronos", {"stack": "encodr"}, "encoder"),
        ("weight_ranks", "chronos", {"parts": ["W_q"]}, "W_Q"),
        ("weight_ranks", "chronos-bolt", {"parts": ["W_gate"]}, "has none of W_gate"),
        *(
            ("weight_ranks", "chronos", {"epsilon": epsilon}, "epsilon is")
            for epsilon in (0, 1, -0.1, 2.0, float("nan"), True, "0.1", [], [0.1, None])
        ),
    ],
)
def test_probes_refuse_unsuitable_lenses(
    probe: str, model: str, options: dict[str, Any], message: str
) -> None:
    """A lens is refused if its probe cannot use it."""
    expect_error(message, getattr(probes, probe), lens_of(model), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: probes.autoregressive_attention(
                one_run("timesfm-2.5", horizon=100)
            ),
            "one pass",
        ),
        (
            lambda: probes.autoregressive_attention(one_run("chronos", *TWO)),
            "one series at a time",
        ),
        (
            lambda: probes.attention_patterns(one_run("chronos", *TWO)),
            "one series at a time",
        ),
        (lambda: probes.attention_rollout(one_run("chronos", *TWO)), "one series"),
        (lambda: probes.kernel_regression(one_run("timesfm-2.5")), "cross-attention"),
        (
            lambda: probes.lines_of_thought(one_run("t5")),
            "token ids, whose neighbours mean nothing",
        ),
        (
            lambda: probes.minimal_circuit(*make_runs("chronos-bolt"), how="mean"),
            "not both",
        ),
        (
            lambda: probes.activation_patching(one_run("t5"), lens_of("t5")),
            "as corrupted a Run.*; this is a Lens",
        ),
        (
            lambda: probes.weight_ranks(one_run("t5")),
            r"this is a Run; its \.lens is one",
        ),
    ],
)
def test_subjects_of_another_kind_are_refused(
    call: Callable[[], object], message: str
) -> None:
    """A model, batch or run is refused where another kind of thing is needed."""
    expect_error(message, call)


ROOMS = {"probes": probes, "explain": explain}
OF_RUNS = [
    (room, name, parameter.annotation, index)
    for room, module in ROOMS.items()
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
    for index, parameter in enumerate(
        inspect.signature(getattr(module, name)).parameters.values()
    )
    if index == 0
    and ("Run" in str(parameter.annotation) or "Lens" in str(parameter.annotation))
]


@pytest.fixture(scope="module")
def run() -> Run:
    return lens_of("chronos-bolt").run(centred("co2"), 4)


@pytest.mark.parametrize(("room", "name", "asked", "index"), OF_RUNS)
def test_every_probe_says_what_it_takes(
    room: str, name: str, asked: str, index: int, run: Run
) -> None:
    if asked == "Run | SeriesBatch":
        pytest.skip("takes series, too")
    probe = getattr(ROOMS[room], name)
    values = run.batch.values[0]
    other = run.lens if "Run" in asked else run
    for given in (run.batch, values, run.forecast, None, "co2", other):
        pair = 1
        if name in ("activation_patching", "path_patching"):
            pair = 2
        if given is None:
            reported = "None"
        else:
            reported = type(given).__name__
        expect_error(f"{room}.{name} takes .*{reported}", probe, *[given] * pair)


@pytest.mark.parametrize("name", ["layer_gain", "sharp_heads", "induction_overlap"])
def test_probes_name_the_result_they_need(name: str, run: Run) -> None:
    """A probe that goes on from a result names the kind that it needs."""
    takes = r"probes\.(logit_lens|head_entropy|induction_scores)"
    for given, reported in (
        (run, "Run"),
        (np.zeros(3), "ndarray"),
        (None, "None"),
        (run.forecast.to_dataset(), "of kind 'forecast'"),
    ):
        expect_error(f"{takes}.*{reported}", getattr(probes, name), given)


@pytest.mark.parametrize("model", ["chronos-bolt", "chronos", "chronos-2"])
@pytest.mark.parametrize("probe", [*CONTRASTS, "minimal_circuit"])
def test_contrasts_refuse_windows_of_other_dates(model: str, probe: str) -> None:
    """Tokens of one place that show other dates are no pair; unknown dates may be."""
    series = bundled("nile", "elnino").tail(46)
    clean = lens_of(model).run(series.tail(40), 6)
    earlier = lens_of(model).run(series, 6, holdout=True)
    expect_error("starts at .*holdout=True", getattr(probes, probe), clean, earlier)
    # the advice of the message gives a pair
    pair = replace(earlier.batch, starts=clean.batch.starts)
    _check_pair(clean, lens_of(model).run(pair, 6))
    _check_pair(clean, lens_of(model).run(replace(pair, starts=(None, None)), 6))


@pytest.mark.parametrize("package", [probes, explain], ids=["probes", "explain"])
@pytest.mark.parametrize("seed", [-1, 1.5, "a", True], ids=repr)
def test_seeds_that_are_none_are_refused(package: Any, seed: Any) -> None:
    """In every function that draws; numpy's own errors name no argument."""
    n_checked = 0
    for name in package.__all__:
        function = getattr(package, name)
        if not inspect.isfunction(function):
            continue
        parameter = inspect.signature(function).parameters.get("seed")
        if parameter is None or parameter.annotation != "int":
            continue
        n_checked += 1
        expect_error("seed is", function, seed=seed)
    assert n_checked

"""Every probe runs as few series at once as the memory asks for, and finds what it finds of the whole batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.ablation import Variant, run_variants
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.hooks import EditPattern, Resample
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import assert_close

STEPS, HORIZON, SERIES, MANY = 40, 3, 3, 12
# roundings between two ways to multiply the same matrices, through all layers and what probes make of them
DEPTH = 10_000
NAMES = ("bolt-nano", "chronos-nano")
Call = Callable[[Lens, SeriesBatch, dict[str, Any]], xr.Dataset]

MLPS = ["decoder.0.mlp", "decoder.1.mlp"]
CALLS: dict[str, Call] = {
    "activation_patching": lambda m, x, _: probes.activation_patching(
        m.run(x, HORIZON, rollout=False),
        m.run(other(x), HORIZON, rollout=False),
        at=[*MLPS, "decoder.1.cross_attn.0"],
    ),
    "ablation_effects": lambda m, x, o: probes.ablation_effects(
        m.run(x, HORIZON, **o), components=MLPS
    ),
    "ablation_recipes": lambda m, x, o: probes.ablation_recipes(
        m.run(x, HORIZON, **o), {"first": MLPS[:1]}
    ),
    "attribute": lambda m, x, o: probes.attribute(
        m.run(x, HORIZON, **o), decompositions="all"
    ),
    "causal_effects": lambda m, x, _: probes.causal_effects(
        m.run(x, HORIZON, rollout=False), components=MLPS
    ),
    "context_parroting": lambda m, x, o: probes.context_parroting(
        m.run(x, HORIZON, **o)
    ),
    "entropic_rank": lambda m, x, o: probes.entropic_rank(m.run(x, HORIZON, **o)),
    "head_entropy": lambda m, x, o: probes.head_entropy(m.run(x, HORIZON, **o)),
    "kernel_regression": lambda m, x, _: probes.kernel_regression(
        m.run(x.select([0]), HORIZON)
    ),
    "layer_similarity": lambda m, x, o: probes.layer_similarity(m.run(x, HORIZON, **o)),
    "lines_of_thought": lambda m, x, o: probes.lines_of_thought(m.run(x, HORIZON, **o)),
    "logit_lens": lambda m, x, o: probes.logit_lens(m.run(x, HORIZON, **o)),
    "minimal_circuit": lambda m, x, _: probes.minimal_circuit(
        m.run(x, HORIZON, rollout=False), None, nodes=MLPS
    ),
    "repeated_motif": lambda m, _x, o: probes.repeated_motif(m, n_series=SERIES, **o),
    "induction_scores": lambda m, _x, _: probes.induction_scores(
        m, n_sequences=SERIES, motif=5, decoding="forced"
    ),
    "seasonality_bias": lambda m, x, o: probes.seasonality_bias(m.run(x, HORIZON, **o)),
    "stream_shares": lambda m, x, o: probes.stream_shares(m.run(x, HORIZON, **o)),
}
TOKENS_ONLY = {"lines_of_thought", "induction_scores"}
# of one series, of weights alone, made of the probes above, or streaming its series as test_rank_probes.py has it
OTHERS = set(
    "attention_rollout attention_patterns component_writes head_parroting head_spectra head_states embedding_ranks "
    "flow_of_ranks row_angles signal_families weight_ranks heads_by_stable_rank lag_attention weight_effects "
    "norm_weighted_attention patch_attention random_heads autoregressive_attention".split()
)
# differences of equals, and signs of parts of size 0, which are rounding and nothing else
ROUNDING = {
    "completeness_error",
    "identity_error",
    "path_error",
    "sign_agreement",
    "series_agreement",
}
# a gradient of all series together, and activations that are heard of all of them
WHOLE = {"attribution_patching", "edge_attribution", "path_patching"}


def series(count: int = SERIES) -> SeriesBatch:
    steps, rng = np.arange(STEPS), np.random.default_rng(0)
    return as_series(
        [np.sin(steps / (2 + k)) + 0.1 * rng.normal(size=STEPS) for k in range(count)]
    )


def other(batch: SeriesBatch) -> SeriesBatch:
    return replace(batch, values=tuple(np.roll(values, 6) for values in batch.values))


def test_every_probe_of_a_model_is_tried() -> None:
    functions = {
        name: getattr(probes, name)
        for name in probes.__all__
        if inspect.isfunction(getattr(probes, name))
    }
    takes = {"lens", "run", "clean"}
    of_model = {
        name
        for name, one in functions.items()
        if takes & set(inspect.signature(one).parameters)
    }
    assert of_model == set(CALLS) | OTHERS | WHOLE


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as where hardly anything fits."""
    for module in ("models.batching", "models.recording", "ablation.engine"):
        monkeypatch.setattr(f"tsfm_lens.{module}.fitting", lambda *_args, **_options: 1)


@pytest.mark.parametrize("name", NAMES)
def test_probes_find_the_same_one_series_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, batch = load(name), series()
    token = lens.adapter.readout == "token"
    options = {"num_samples": 2} if token else {}
    chosen = {
        probe: call
        for probe, call in CALLS.items()
        if token or probe not in TOKENS_ONLY
    }
    expected = {probe: call(lens, batch, options) for probe, call in chosen.items()}

    one_at_a_time(monkeypatch)
    rows: list[int] = []
    run, predict = lens.adapter.run, lens.adapter.predict

    def seen(inputs: Any) -> torch.Tensor:
        rows.append(
            len(
                next(
                    value
                    for value in inputs.values()
                    if isinstance(value, torch.Tensor)
                )
            )
        )
        return run(inputs)

    def seen_batch(part: SeriesBatch, *rest: Any) -> Any:
        rows.append(len(part))
        return predict(part, *rest)

    monkeypatch.setattr(lens.adapter, "run", seen)
    monkeypatch.setattr(lens.adapter, "predict", seen_batch)
    for probe, call in chosen.items():
        rows.clear()
        found = call(lens, batch, options)
        assert set(rows) == {1}, (probe, rows)
        assert set(found) == set(expected[probe])
        for variable in set(found) - ROUNDING:
            what, actual = f"{probe}: {variable}", found[variable].values
            if actual.dtype.kind == "f":
                assert_close(
                    actual,
                    expected[probe][variable].values,
                    depth=DEPTH,
                    dtype=torch.float32,
                    what=what,
                )
            else:
                assert np.array_equal(actual, expected[probe][variable].values), what


@pytest.mark.parametrize("name", NAMES)
def test_what_looks_at_the_whole_batch_is_shown_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, rows = load(name), list[int]()
    known: dict[str, Any] = {"horizon": HORIZON}
    if lens.adapter.readout == "token":
        known = {"future": np.ones((MANY, HORIZON))}
    _, source = lens.run_with_cache(
        other(series(MANY)), names_filter="**.mlp.hook_out", **known
    )
    encoded, run = lens.encode(series(MANY), **known), lens.adapter.run
    one_at_a_time(monkeypatch)
    monkeypatch.setattr(
        lens.adapter,
        "run",
        lambda inputs: rows.append(len(next(iter(inputs.values())))) or run(inputs),
    )
    for apart in (
        Resample(MLPS[0], source),
        EditPattern("decoder.0.cross_attn", torch.zeros_like),
    ):
        rows.clear()
        run_variants(lens, encoded, [Variant("apart", (apart,))])
        assert set(rows) == {MANY}
    monkeypatch.setattr(
        lens.adapter, "run", lambda _inputs: (_ for _ in ()).throw(MemoryError())
    )
    with pytest.raises(
        InputError,
        match=r"give fewer series at once, since what is done at decoder_blocks",
    ):
        run_variants(lens, encoded, [Variant("apart", (apart,))])

"""Induction tests in tokens and values on hand-built heads, and the overlap with sharp
heads against the paper.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal, assert_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, fresh, lens_of
from tiny_series import few_draws, forecast_instead
from tsfm_lens import testing
from tsfm_lens.hooks import EditPattern
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import induction_overlap, induction_scores, repeated_motif
from tsfm_lens.probes.attention import pick_attention
from tsfm_lens.probes.induction import _match_targets, _sequences
from tsfm_lens.probes.repeated_motif import _draw, _Plan, _targets
from tsfm_lens.testing import assert_close, last_digit

AT = "decoder_blocks.1.cross_attn"
MOTIF = 8
REPEATS = 4
COUNT = 8


def drawn(lens: Lens, within: float = 8.0) -> torch.Tensor:
    """The motifs of the test, drawn here once more."""
    generator = torch.Generator().manual_seed(0)
    allowed = (
        torch.nonzero(lens.native.tokenizer.centers.abs() <= within).reshape(-1) + 3
    )
    return allowed[torch.randint(len(allowed), (COUNT, MOTIF), generator=generator)]


def options(decoding: str = "forced", **more: object) -> dict[str, Any]:
    return {
        "motif": MOTIF,
        "repeats": REPEATS,
        "n_sequences": COUNT,
        "within": 8.0,
        "decoding": decoding,
        **more,
    }


def test_the_drawn_ids_are_the_papers() -> None:
    lens = load(testing.published("chronos", "tiny"), check=False)
    ids, motifs = _sequences(lens, 32, 4, 400, 1.0124, 0)
    assert sorted(set(motifs.ravel().tolist())) == list(range(1911, 2188))
    assert ids.shape == (400, 129)
    assert (ids[:, -1] == 1).all()
    assert torch.equal(
        ids[:, :-1].reshape(400, 4, 32), motifs[:, None].expand(-1, 4, -1)
    )


@pytest.mark.parametrize("offset", [0, 1])
def test_hand_built_induction_heads_are_found(offset: int) -> None:
    """Plant attention on the right key and a write that unembeds as the token there."""
    lens = lens_of("chronos")
    assert not induction_scores(lens, **options()).induction.any()
    motifs = drawn(lens)

    def attend(pattern: torch.Tensor, hook: object) -> torch.Tensor:
        pattern[:, 1] = 0.0
        for query in range(1, MOTIF):
            pattern[:, 1, query, (REPEATS - 1) * MOTIF + query - 1 + offset] = 1.0
        return pattern

    def copy(result: torch.Tensor, hook: object) -> torch.Tensor:
        result[:, :, 1] = lens.adapter.model.lm_head.weight.detach()[motifs] * 50.0
        return result

    with lens.hooks([(f"{AT}.hook_pattern", attend), (f"{AT}.hook_result", copy)]):
        found = induction_scores(lens, **options(offset=offset))
        other = induction_scores(lens, **options(offset=1 - offset))
        strict = induction_scores(lens, **options(offset=offset, copy_from=1e3))
    assert found.induction.values.tolist() == [[False] * 4, [False, True, False, False]]
    assert float(found.prefix_matching.sel(layer=1, head=1)) == pytest.approx(1.0)
    assert float(other.prefix_matching.sel(layer=1, head=1)) == 0
    assert int(found.copy_score.values.argmax()) == 5
    # the start token's row is empty here, so it has no entropy either
    close_in_float32(found.entropy.sel(layer=1, head=1), 0.0, depth=16, magnitude=1.0)
    assert not strict.induction.any()
    assert strict.attrs["positions"] == "last"


def test_the_last_continued_match_counts() -> None:
    """Of earlier matches the last one with a continuation counts."""
    context = torch.tensor([[5, 6, 7, 5, 8, 9]])
    found = _match_targets(context, torch.tensor([[5, 6, 9, 4]]))
    assert found.valid.tolist() == [
        [True, True, False, False]
    ]  # 9 ends the context, 4 never came
    assert found.keys[0, :2].tolist() == [3, 1]
    assert found.right[0, :2].tolist() == [8, 7]
    expect_error(
        "no token of its context", _match_targets, context, torch.tensor([[9, 4]])
    )


def results(
    prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray
) -> tuple[xr.Dataset, xr.Dataset]:
    layers, heads = prefix.shape
    coords = {"layer": range(layers), "head": range(heads)}
    where = ("layer", "head")
    one = xr.Dataset(
        {"prefix_matching": (where, prefix), "copy_score": (where, copy)}, coords=coords
    )
    span = np.ptp(entropy)
    two = xr.Dataset(
        {
            "normalised": (where, (entropy - entropy.min()) / span),
            "entropy": (where, entropy),
        },
        coords,
    )
    one.attrs = {"kind": "induction_scores", "model": "toy", "attention": "cross_attn"}
    two.attrs = {"kind": "head_entropy", "model": "toy", "attention": "cross_attn"}
    return one, two


def test_the_papers_table() -> None:
    """12 induction heads, 10 sharp heads, 2 both, of 144."""
    flat = np.arange(144).reshape(12, 12)
    # the first twelve just reach both thresholds, each of the others misses one of them
    # by a little
    prefix = np.where((flat < 12) | (flat % 2 == 0), 0.3, 0.29)
    copy = np.where((flat < 12) | (flat % 2 == 1), 2.0, 1.99)
    # nine sharp heads at 0, one just below the threshold, one head on it
    entropy = np.where((flat >= 10) & (flat < 19), 0.0, 1.0)
    entropy.flat[19], entropy.flat[20] = 0.379, 0.38
    found = induction_overlap(*results(prefix, copy, entropy))
    assert_array_equal(found["count"], [[2, 10], [8, 124]])
    assert_allclose(
        found["proportion"], [[0.0139, 0.0694], [0.0556, 0.8611]], atol=last_digit(4)
    )
    assert_allclose(found["proportion_induction"], [0.0833, 0.9167], atol=last_digit(4))
    assert_allclose(found["proportion_sharp"], [0.0694, 0.9306], atol=last_digit(4))
    assert float(found["p_sharp_given_induction"]) == pytest.approx(1 / 6)
    assert float(found["p_induction_given_sharp"]) == pytest.approx(0.2)


def test_sweeps_equal_tables_at_every_threshold() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((4, 5)), 4 * rng.random((4, 5)), rng.random((4, 5))
    one, two = results(*scores)
    found = induction_overlap(one, two)
    for copy, level, prefix in product([0.0, 1.0, 2.5], [0.2, 0.5], [0.0, 0.3, 0.9]):
        single = induction_overlap(one, two, copy_from=copy, sharp_below=level)
        at = {"copy_threshold": copy, "entropy_threshold": level}
        for name in ("sharp_given_induction", "induction_given_sharp"):
            assert_equal(
                float(found[f"sweep_{name}"].sel(at)), float(single[f"p_{name}"])
            )
        sharp = found["sweep_sharp_count"].sel(entropy_threshold=level)
        assert int(sharp) == int(single["count"][:, 0].sum())
        single = induction_overlap(one, two, copy_from=copy, prefix_from=prefix)
        at = {"copy_threshold": copy, "prefix_threshold": prefix}
        share = found["sweep_proportion_induction"].sel(at)
        assert float(share) == pytest.approx(float(single["proportion_induction"][0]))
    flat = [score.ravel() for score in scores]
    assert_close(found["correlation"], np.corrcoef(flat), depth=100, magnitude=1.0)


def test_shares_of_no_heads_are_undefined() -> None:
    """A share of no heads is undefined, and such draws are counted."""
    ones = np.ones((2, 3))
    one, two = results(0 * ones, ones, np.arange(6.0).reshape(2, 3))
    found = induction_overlap(one, two)
    assert np.isnan(found["p_sharp_given_induction"])
    assert float(found["p_induction_given_sharp"]) == 0
    assert (found["sweep_induction_count"] == 0).all()
    assert np.isnan(
        found["correlation"].sel(score="copy_score", other_score="normalised")
    )


def test_results_of_other_heads_are_refused() -> None:
    """Only results of the same heads are compared."""
    one, two = results(np.ones((2, 3)), np.ones((2, 3)), np.arange(6.0).reshape(2, 3))
    for probes, text in (
        (
            (two, one),
            r"'induction_scores', as probes\.induction_scores.* of kind 'head_entropy'",
        ),
        ((one,), "holds no entropies"),
        (
            (one, two.assign_attrs(attention="self_attn")),
            "the entropies of 'self_attn'",
        ),
        (
            (one, two.assign_attrs(model="other")),
            "of the model 'toy', the entropies of 'other'",
        ),
        ((one, two.isel(head=[0, 1])), "the heads"),
    ):
        expect_error(text, induction_overlap, *probes)


@pytest.mark.parametrize(
    ("model", "positions", "read"),
    [
        ("chronos-nano", "last", slice(-1, None)),
        ("chronos-nano", "first", slice(0, 1)),
        ("chronos", "all", slice(None)),
    ],
)
def test_copy_scores_are_logits_z_scores(
    model: str, positions: str, read: slice
) -> None:
    """Copy scores are the z-scores of the logits."""
    if model.endswith("nano"):
        lens = load(model)
    else:
        lens = fresh(model)
    sizes = {"motif": 6, "repeats": 3, "n_sequences": 5, "within": 3.0}
    found = induction_scores(lens, **sizes, decoding="forced", positions=positions)
    ids, motifs = _sequences(lens, *sizes.values(), seed=0)
    right = motifs[:, 1:]
    start = torch.zeros(5, 1, dtype=torch.long)
    encoded = lens.adapter.encode_tokens(ids, torch.cat([start, motifs[:, :-1]], dim=1))  # type: ignore[attr-defined]
    n_layers = lens.wiring.output_stack.n_layers
    points = [
        f"decoder_blocks.{layer}.cross_attn.hook_result" for layer in range(n_layers)
    ]
    with torch.no_grad():
        _, activations = lens.run_with_cache(encoded, names_filter=points)
        for layer, point in enumerate(points):
            logits = lens.readout(
                activations[point].transpose(1, 2).transpose(0, 1), encoded
            ).double()[:, :, 1:]
            chosen = logits.gather(-1, right.expand(len(logits), -1, -1)[..., None])[
                ..., 0
            ]
            z = ((chosen - logits.mean(-1)) / logits.std(-1))[..., read].mean(
                dim=(1, 2)
            )
            close_in_float32(found["copy_score"].values[layer], z.numpy())


def even(pattern: torch.Tensor) -> torch.Tensor:
    """The same weight on every key that has any."""
    seen = (pattern > 0).to(pattern)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_an_even_head_has_chance_everywhere(name: str) -> None:
    lens = lens_of(name)
    row, kind, layers = pick_attention(lens, None, None)
    dot = ""
    if row.name:
        dot = f"{row.name}."
    with lens.edit(*(EditPattern(f"{dot}{layer}.{kind}", even) for layer in layers)):
        found = repeated_motif(lens, n_series=3, **few_draws(lens))
    assert found["layer"].values.tolist() == list(layers)
    expected = np.broadcast_to(
        found["chance"].values[:, None, None], found["prefix_matching"].shape
    )
    close_in_float32(found["prefix_matching"], expected)
    close_in_float32(found["advantage"], 0, magnitude=1.0)
    assert (found["chance"] > 0).all()
    assert (found["chance"] < 1).all()
    if not getattr(lens.adapter, "integers", False):
        assert np.isfinite(found["relative_copy_error"]).all()


@pytest.mark.parametrize("queries", ["forecast", "context"])
@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_targets_show_what_comes_next(name: str, queries: str) -> None:
    """Value by value: the key after the last match holds what follows the query, and no
    later key does.
    """
    lens = lens_of(name)
    row, kind, layers = pick_attention(lens, None, None)
    keys_from = row.attention(kind, layers[0]).keys_from or row.name
    patch = repeated_motif(lens, n_series=3, **few_draws(lens)).attrs["patch"]
    plan = _Plan(2, 4, patch, 3, 4, min(lens.adapter.prediction_length, 4 * patch))
    context, future, lengths = _draw(lens, plan, seed=1)
    encoded = lens.run(context, plan.steps, forced_path=future, rollout=False).encoded
    asking = encoded.spans[row.name]
    visible = encoded.spans[keys_from]
    forecasting = any(0 <= start < plan.steps for start in asking.start)
    if (queries == "forecast" and not forecasting) or (
        queries == "context" and keys_from != row.name
    ):
        expect_error(
            f"is a {queries} query",
            _targets,
            encoded,
            row,
            keys_from,
            lengths,
            plan,
            queries,
        )
        return
    after_last, last, _ = _targets(encoded, row, keys_from, lengths, plan, queries)
    assert after_last.any(axis=(1, 2)).all()
    for series, length in enumerate(lengths):
        zero = context.shape[1]
        held = {
            key: context[series, zero + visible.start[key] : zero + visible.stop[key]]
            for key in range(len(visible))
            if not visible.special[key] and visible.stop[key] <= 0
        }
        # the first value of a motif stands at the forecast start
        motif = context[series, -length:]
        for query in np.flatnonzero(after_last[series].any(axis=-1)):
            if queries == "forecast":
                begin = asking.start[query]
            else:
                begin = asking.stop[query]
            wanted, before = (
                motif[np.arange(start, start + patch) % length]
                for start in (begin, begin - patch)
            )
            earlier = [
                key
                for key, values in held.items()
                if np.array_equal(values, wanted) and visible.start[key] < begin
            ]
            assert after_last[series, query, earlier[-1]]
            (match,) = np.flatnonzero(last[series, query])
            assert match == earlier[-1] - 1
            assert_array_equal(held[match], before)


def test_continuing_the_motif_has_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forecast that goes on with the motif has no error."""
    lens = fresh("chronos-bolt")
    context, wanted, _ = _draw(lens, _Plan(2, 4, 4, 4, 6, 16), seed=3)
    forecast_instead(monkeypatch, lens, wanted[:, None])
    found = repeated_motif(lens, n_series=6, seed=3)
    assert_array_equal(found["relative_copy_error"], 0)
    assert_array_equal(found["truth"], wanted)
    forecast_instead(
        monkeypatch,
        lens,
        np.broadcast_to(context.mean(axis=1)[:, None, None], (6, 1, 16)),
    )
    assert_allclose(repeated_motif(lens, n_series=6, seed=3)["relative_copy_error"], 1)

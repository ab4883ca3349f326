"""The repeated-tokens test on hand-built heads, and the overlap of induction and sharp heads against the paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from tiny_lenses import fresh, lens_of
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import head_entropy, induction_overlap, induction_scores
from tsfm_lens.probes.induction import (
    _forced_targets,
    _match_targets,
    _sequences,
    _z_score,
)
from tsfm_lens.testing import assert_close, last_digit

AT = "decoder_blocks.1.cross_attn"
MOTIF, REPEATS, COUNT = 8, 4, 8


def uniform(pattern: torch.Tensor, hook: object) -> torch.Tensor:
    return torch.full_like(pattern, 1.0 / pattern.shape[-1])


def drawn(lens: Lens, within: float = 8.0) -> torch.Tensor:
    """The motifs of the test, drawn here once more."""
    generator = torch.Generator().manual_seed(0)
    allowed = torch.nonzero(lens.native.tokenizer.centers.abs() <= within).reshape(-1) + 3
    return allowed[torch.randint(len(allowed), (COUNT, MOTIF), generator=generator)]


def options(decoding: str = "forced", **more: object) -> dict[str, Any]:
    return {"motif": MOTIF, "repeats": REPEATS, "n_sequences": COUNT, "within": 8.0, "decoding": decoding, **more}


def test_the_drawn_ids_are_the_papers() -> None:
    lens = load(architectures()["chronos"].build("tiny"), check=False)
    ids, motifs = _sequences(lens, 32, 4, 400, 1.0124, 0)
    assert sorted(set(motifs.ravel().tolist())) == list(range(1911, 2188))
    assert ids.shape == (400, 129)
    assert (ids[:, -1] == 1).all()
    assert torch.equal(ids[:, :-1].reshape(400, 4, 32), motifs[:, None].expand(-1, 4, -1))


@pytest.mark.parametrize("offset", [0, 1])
def test_a_hand_built_induction_head_is_found(offset: int) -> None:
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
    assert float(found.prefix_matching.sel(layer="1", head=1)) == pytest.approx(1.0)
    assert float(other.prefix_matching.sel(layer="1", head=1)) == 0
    assert int(found.copy_score.values.argmax()) == 5
    # the start token's row is empty here, so it has no entropy either
    assert_close(found.entropy.sel(layer="1", head=1), 0.0, depth=16, magnitude=1.0, dtype=np.float32)
    assert not strict.induction.any()


@pytest.mark.parametrize("decoding", ["forced", "rollout"])
def test_a_uniform_head_attends_to_every_key_alike(decoding: str) -> None:
    """128 tokens and the end token."""
    lens = load("chronos-nano")
    with lens.hooks([("decoder_blocks.*.cross_attn.hook_pattern", uniform)]):
        found = induction_scores(lens, n_sequences=4, within=0.5, decoding=decoding)
    assert_close(found.prefix_matching, 1 / 129, depth=100, dtype=np.float32)
    assert_close(found.entropy, np.log(129), depth=100, dtype=np.float32)


def test_one_hot_logits_have_the_known_copy_score() -> None:
    size = 4096
    logits = torch.zeros(1, 1, size, dtype=torch.float64)
    logits[..., 7] = 3.0
    expected = np.sqrt(size - 1) * np.sqrt((size - 1) / size)
    assert float(_z_score(logits, torch.tensor([[7]]))) == pytest.approx(expected)
    assert expected == pytest.approx(63.98, abs=last_digit(2))
    assert float(_z_score(torch.zeros(1, 1, size), torch.tensor([[7]]))) == 0


def test_the_last_instance_with_a_continuation_counts() -> None:
    context = torch.tensor([[5, 6, 7, 5, 8, 9]])
    found = _match_targets(context, torch.tensor([[5, 6, 9, 4]]))
    assert found.valid.tolist() == [[True, True, False, False]]  # 9 ends the context, 4 never came
    assert found.keys[0, :2].tolist() == [3, 1]
    assert found.right[0, :2].tolist() == [8, 7]
    with pytest.raises(InputError, match="no token of its context"):
        _match_targets(context, torch.tensor([[9, 4]]))


def test_scores_are_read_at_the_last_decoder_position_unless_asked_otherwise() -> None:
    """A head that looks past the instance of its token from one position alone, at each position in turn."""
    lens = lens_of("chronos")
    found = {}
    for name, query in (("first", 1), ("last", MOTIF - 1)):

        def attend(pattern: torch.Tensor, hook: object, query: int = query) -> torch.Tensor:
            pattern[:, 1] = 0.0
            pattern[:, 1, query, (REPEATS - 1) * MOTIF + query] = 1.0
            return pattern

        with lens.hooks([(f"{AT}.hook_pattern", attend)]):
            default = induction_scores(lens, **options())
            each = {way: induction_scores(lens, **options(positions=way)) for way in ("last", "first", "all")}
        assert (default.attrs["positions"], default.attrs["offset"]) == ("last", 1)
        assert default.prefix_matching.identical(each["last"].prefix_matching)
        found[name] = {way: float(ds.prefix_matching.sel(layer="1", head=1)) for way, ds in each.items()}
    share = pytest.approx(1 / (MOTIF - 1))
    assert found["first"] == {"last": 0.0, "first": 1.0, "all": share}
    assert found["last"] == {"last": 1.0, "first": 0.0, "all": share}


def test_the_single_step_of_the_released_code() -> None:
    """Its prompt by hand: four motifs and one token more, the start token and the motif's second token, one step."""
    lens, motifs = lens_of("chronos"), drawn(lens_of("chronos"))
    end, start = torch.full((COUNT, 1), 1), torch.zeros(COUNT, 1, dtype=torch.long)
    ids = torch.cat([motifs.repeat(1, REPEATS), motifs[:, :1], end], dim=1)
    encoded = lens.adapter.encode_tokens(ids, torch.cat([start, motifs[:, 1:2]], dim=1))  # type: ignore[attr-defined]
    with torch.no_grad():
        _, acts = lens.run_with_cache(encoded, names_filter=[f"{AT}.hook_pattern", f"{AT}.hook_result"])
    shown = ids[:, :-1]
    # the second token in the last motif; a rollout looks for its last instance, should it come twice in a motif
    led = torch.full((COUNT,), (REPEATS - 1) * MOTIF + 1)
    last = torch.where(shown[:, :-1] == motifs[:, 1:2], torch.arange(REPEATS * MOTIF), -1).amax(1)
    logits = lens.readout(acts[f"{AT}.hook_result"].permute(2, 0, 1, 3), encoded)[:, :, 1].detach().double()
    for decoding, key in (("forced", led), ("rollout", last)):
        found = induction_scores(lens, **options(decoding, sub_extension=True, positions="first", offset=1))
        assert found.attrs["sub_extension"]
        expected = acts[f"{AT}.hook_pattern"][torch.arange(COUNT), :, 1, key + 1].mean(0)
        assert_close(found.prefix_matching.sel(layer="1"), expected, depth=200, dtype=torch.float32)
        right = shown.gather(1, key[:, None] + 1)
        above = logits.gather(-1, right[None].expand(len(logits), -1, -1))[..., 0] - logits.mean(-1)
        copied = (above / logits.std(-1)).mean(-1)
        assert_close(found.copy_score.sel(layer="1"), copied, depth=100, dtype=torch.float32)
    # the whole motif, led: after its last token comes the first one
    whole = _forced_targets(motifs.roll(-1, dims=1), REPEATS, 1)
    assert torch.equal(ids.gather(1, whole.keys + 1), whole.right)
    assert torch.equal(whole.right[:, -1], motifs[:, 0])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("chronos", {"motif": 32}, "at most 64 tokens"),
        ("chronos", {"offset": 2}, "offset is 2"),
        ("chronos", {"positions": "mean"}, "positions='mean' is not known, choose 'last'"),
        ("chronos", {"decoding": "free"}, "decoding='free'"),
        ("chronos-bolt", {}, "no encoder-decoder model over value tokens"),
    ],
)
def test_the_test_needs_room_and_a_token_model(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        induction_scores(lens_of(name), **{"motif": 8} | options)


def results(prefix: np.ndarray, copy: np.ndarray, entropy: np.ndarray) -> tuple[xr.Dataset, xr.Dataset]:
    layers, heads = prefix.shape
    coords = {"layer": list(map(str, range(layers))), "head": range(heads)}
    where = ("layer", "head")
    one = xr.Dataset({"prefix_matching": (where, prefix), "copy_score": (where, copy)}, coords=coords)
    span = np.ptp(entropy)
    two = xr.Dataset({"normalised": (where, (entropy - entropy.min()) / span), "entropy": (where, entropy)}, coords)
    one.attrs = {"kind": "induction", "model": "toy", "attention": "cross_attn"}
    two.attrs = {"kind": "head_entropy", "model": "toy", "attention": "cross_attn"}
    return one, two


def test_the_papers_table() -> None:
    """12 induction heads, 10 sharp heads, 2 both, of 144."""
    flat = np.arange(144).reshape(12, 12)
    # the first twelve just reach both thresholds, each of the others misses one of them by a little
    prefix = np.where((flat < 12) | (flat % 2 == 0), 0.3, 0.29)
    copy = np.where((flat < 12) | (flat % 2 == 1), 2.0, 1.99)
    # nine sharp heads at 0, one just below the threshold, one head on it
    entropy = np.where((flat >= 10) & (flat < 19), 0.0, 1.0)
    entropy.flat[19], entropy.flat[20] = 0.379, 0.38
    found = induction_overlap(*results(prefix, copy, entropy))
    np.testing.assert_array_equal(found["count"], [[2, 10], [8, 124]])
    np.testing.assert_allclose(found["proportion"], [[0.0139, 0.0694], [0.0556, 0.8611]], atol=last_digit(4))
    np.testing.assert_allclose(found["proportion_induction"], [0.0833, 0.9167], atol=last_digit(4))
    np.testing.assert_allclose(found["proportion_sharp"], [0.0694, 0.9306], atol=last_digit(4))
    assert float(found["p_sharp_given_induction"]) == pytest.approx(1 / 6)
    assert float(found["p_induction_given_sharp"]) == pytest.approx(0.2)


def test_sweeps_are_the_table_at_every_threshold() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((4, 5)), 4 * rng.random((4, 5)), rng.random((4, 5))
    one, two = results(*scores)
    grids = {"copy_grid": [0.0, 1.0, 2.5], "entropy_grid": [0.2, 0.5], "prefix_grid": [0.0, 0.3, 0.6, 0.9]}
    found = induction_overlap(one, two, **grids)
    for copy in grids["copy_grid"]:
        for level in grids["entropy_grid"]:
            single = induction_overlap(one, two, copy_from=copy, sharp_below=level)
            at = {"copy_threshold": copy, "entropy_threshold": level}
            for name in ("sharp_given_induction", "induction_given_sharp"):
                assert float(found[f"sweep_{name}"].sel(at)) == float(single[f"p_{name}"])
            assert int(found["sweep_sharp_count"].sel(entropy_threshold=level)) == int(single["count"][:, 0].sum())
        for prefix in grids["prefix_grid"]:
            single = induction_overlap(one, two, copy_from=copy, prefix_from=prefix)
            cell = found["sweep_proportion_induction"].sel(copy_threshold=copy, prefix_threshold=prefix)
            assert float(cell) == pytest.approx(float(single["proportion_induction"][0]))
    flat = [score.ravel() for score in scores]
    assert_close(found["correlation"], np.corrcoef(flat), depth=100, magnitude=1.0)


def test_a_share_of_no_heads_is_undefined_and_counted() -> None:
    ones = np.ones((2, 3))
    one, two = results(0 * ones, ones, np.arange(6.0).reshape(2, 3))
    found = induction_overlap(one, two)
    assert np.isnan(found["p_sharp_given_induction"])
    assert float(found["p_induction_given_sharp"]) == 0
    assert (found["sweep_induction_count"] == 0).all()
    assert np.isnan(found["correlation"].sel(score="copy_score", other_score="normalised"))


def test_only_results_of_the_same_heads_are_compared() -> None:
    one, two = results(np.ones((2, 3)), np.ones((2, 3)), np.arange(6.0).reshape(2, 3))
    for probes, words in (
        ((two, one), r"'induction', as probes\.induction_scores.* of kind 'head_entropy'"),
        ((one,), "holds no entropies"),
        ((one, two.assign_attrs(attention="self_attn")), "the entropies of 'self_attn'"),
        ((one, two.assign_attrs(model="other")), "of the model 'toy', the entropies of 'other'"),
        ((one, two.isel(head=[0, 1])), "the heads"),
    ):
        with pytest.raises(InputError, match=words):
            induction_overlap(*probes)
    with pytest.raises(InputError, match="ascending"):
        induction_overlap(one, two, copy_grid=[2.0, 1.0])


def test_both_sources_of_entropy_on_a_model() -> None:
    lens = load("chronos-nano")
    test = induction_scores(lens, motif=16, n_sequences=8)
    along = induction_overlap(test)
    spread = test["entropy"] - test["entropy"].min()
    np.testing.assert_allclose(along["normalised"], spread / spread.max())
    entropy = head_entropy(lens.run(bundled("co2").tail(96), 12), kind="cross_attn")
    found = induction_overlap(test, entropy)
    np.testing.assert_array_equal(found["sharp"], entropy["sharp"])
    np.testing.assert_array_equal(found["induction"], test["induction"])
    assert (along.attrs["entropy_along"], found.attrs["entropy_along"]) == ("repeated tokens", "forecasts")


@pytest.mark.parametrize(
    ("model", "positions", "read"),
    [
        ("chronos-nano", "last", slice(-1, None)),
        ("chronos-nano", "first", slice(0, 1)),
        ("chronos", "all", slice(None)),
    ],
)
def test_copy_scores_are_the_z_scores_of_the_logits(
    model: str, positions: str, read: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = load(model) if model.endswith("nano") else fresh(model)
    options = {"motif": 6, "repeats": 3, "n_sequences": 5, "decoding": "forced", "within": 3.0, "positions": positions}
    # the sequences are taken from the run itself
    ids: dict[str, torch.Tensor] = {}
    native = lens.adapter.encode_tokens

    def encode(context: torch.Tensor, decoder: torch.Tensor) -> object:
        ids.update(context=context, decoder=decoder)
        return native(context, decoder)

    monkeypatch.setattr(lens.adapter, "encode_tokens", encode)
    found = induction_scores(lens, **options)
    encoded = native(ids["context"], ids["decoder"])
    right = ids["context"][:, 1:6]
    n_layers = lens.wiring.output_stack.n_layers
    points = [f"decoder_blocks.{layer}.cross_attn.hook_result" for layer in range(n_layers)]
    with torch.no_grad():
        _, acts = lens.run_with_cache(encoded, names_filter=points)
        for layer, point in enumerate(points):
            logits = lens.readout(acts[point].transpose(1, 2).transpose(0, 1), encoded).double()[:, :, 1:]
            chosen = logits.gather(-1, right.expand(len(logits), -1, -1)[..., None])[..., 0]
            z = ((chosen - logits.mean(-1)) / logits.std(-1))[..., read].mean(dim=(1, 2))
            assert_close(found["copy_score"].values[layer], z.numpy(), depth=100, dtype=np.float32)

"""Path patching and edge attribution against identities that hold for any model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from contrasted import centred, runs_of
from tiny_lenses import lens_of
from tsfm_lens.hooks import Component, PatchFrom
from tsfm_lens.models import architectures
from tsfm_lens.probes import activation_patching, edge_attribution, path_patching
from tsfm_lens.probes.patching import _HeadInput, heard_in_groups, sender_contrast
from tsfm_lens.probes.places import later_branches, places_of
from tsfm_lens.testing import assert_close, rounding

# a finite step feels the curvature, of the order of its size
CURVATURE = 0.05

NAMES = sorted(architectures())


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "chronos-2", "moirai-2", "toto-1"])
def test_a_receiver_hears_the_sender_alone(name: str) -> None:
    """The held run puts the sender's change on the stream before the receiver; accounting gives that stream too."""
    lens = lens_of(name)
    stack = lens.wiring.output_stack
    kinds = [row.kind for row in stack.attentions(0)]
    receiving = next(row for row in stack.attentions(1) if row.over == "time" or stack.attention_kinds() == [row.kind])
    sender = Component(stack.name, 0, kinds[-1], 1)
    receiver = Component(stack.name, 1, receiving.kind, 2 % stack.n_heads)
    branch, runs = Component(stack.name, 1, receiving.kind), runs_of(name)
    pair = sender_contrast(*runs, places_of(lens, [sender]), direction="noise")
    ((_, _, heard),) = next(heard_in_groups(pair, places_of(lens, [sender]), places_of(lens, [receiver])))
    write = f"{stack.prefix}.0.{sender.kind}.hook_result"
    order = [row.kind for row in stack.rows(1)].index(receiving.kind)
    before = f"{stack.prefix}.1." + ["hook_resid_pre", "hook_resid_mid", "hook_resid_mid2"][order]
    base = pair.base.record([write, before])
    source = pair.source.record([write])
    stream = base[before] + source[write][:, :, 1] - base[write][:, :, 1]
    shifted = replace(base, recorded={before: [replace(base.calls(before)[0], value=stream)]})
    z = places_of(lens, [receiver])[0].point
    with lens.edit(PatchFrom(before, shifted)):
        _, expected = lens.run_with_cache(pair.base.encoded, names_filter=[z])
    head = receiver.head
    assert_close(heard[z][:, :, head], expected[z][:, :, head], depth=100)
    assert str(branch) in [str(each) for each in later_branches(lens.wiring, sender)]


@pytest.mark.parametrize("name", NAMES)
def test_the_last_branch_acts_directly(name: str) -> None:
    """Nothing comes after it, so its path to the output is all that patching it does."""
    stack = lens_of(name).wiring.output_stack
    last = Component(stack.name, stack.n_layers - 1, stack.rows(stack.n_layers - 1)[-1].kind)
    paths = path_patching(*runs_of(name), senders=[last])
    whole = activation_patching(*runs_of(name), at=[last], positions="all", direction="noise")
    direct = paths["recovered"].sel(receiver="output").isel(sender=0)
    expected = whole["recovered"].isel(component=0, position=0)
    assert_close(direct, expected, depth=100, magnitude=1.0, dtype=np.float32)
    assert np.isnan(paths["recovered"].isel(receiver=slice(None, -1))).all()


def test_queries_keys_and_values_together_are_the_whole_path() -> None:
    lens, runs = lens_of("chronos-bolt"), runs_of("chronos-bolt")
    sender, receiver = "encoder.0.mlp", "decoder.1.cross_attn.2"
    asked = {"senders": [sender], "receivers": [receiver]}
    whole = path_patching(*runs, **asked)["forecast"].values[0, 0]
    pair = sender_contrast(*runs, places_of(lens, [sender]), direction="noise")
    point = "decoder_blocks.1.cross_attn.hook_{}"
    edits = []
    for part in "qkv":
        ((_, _, heard),) = next(heard_in_groups(pair, places_of(lens, [sender]), places_of(lens, [receiver]), part))
        edits.append(_HeadInput(point.format(part), 2, heard))
        alone = path_patching(*runs, via=part, **asked)["forecast"].values[0, 0]
        # the encoder reaches a decoder head through its keys and values, never through its queries
        bound = rounding(np.float32, np.abs(alone).max(), depth=100)
        assert np.allclose(alone, pair.base.point, rtol=0, atol=bound) == (part == "q")
    with torch.no_grad(), lens.edit(*edits):
        together = pair.base.read(lens.forward(pair.base.encoded)).double().numpy()
    assert_close(together, whole, depth=100, dtype=np.float32)


def test_edges_of_a_small_corruption_are_paths() -> None:
    lens = lens_of("chronos-bolt")
    clean = centred("co2")
    wiggle = 2e-3 * clean.values[0].std() * np.sin(np.arange(40) * 1.7)
    corrupted = replace(clean, values=(clean.values[0] + wiggle,))
    edges = edge_attribution(lens.run(clean, 4), lens.run(corrupted, 4))["score"].values
    paths = path_patching(lens.run(clean, 4), lens.run(corrupted, 4))["recovered"].values
    np.testing.assert_array_equal(edges[np.isnan(paths)], 0)
    assert_close(edges[:, -1], paths[:, -1], depth=100, magnitude=1.0, dtype=np.float32)
    inner = np.nan_to_num(paths[:, :-1])
    assert np.abs(inner).max() > 1e-3
    np.testing.assert_allclose(edges[:, :-1], inner, atol=CURVATURE * np.abs(inner).max())


@pytest.mark.parametrize("name", ["chronos-bolt", "chronos-2", "timesfm-3"])
def test_within_one_pass_a_rollout_is_a_forward(name: str) -> None:
    stack = lens_of(name).wiring.output_stack
    early = [Component(stack.name, 0, row.kind) for row in stack.rows(0)]
    runs = [runs_of(name, select=0, rollout=rollout) for rollout in (False, True)]
    paths = [path_patching(*pair, senders=early)["forecast"].values for pair in runs]
    cells = [activation_patching(*pair, at=early, positions=4, stack=stack.name)["forecast"] for pair in runs]
    size = np.nanmax(np.abs(paths[0]))
    for one, other in (paths, cells):
        assert_close(one, other, depth=100, magnitude=size, dtype=np.float32)


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt", "timesfm-2.5", "toto-1"])
def test_paths_in_rollouts(name: str) -> None:
    """Beyond one pass, too, the last branch acts directly, and a path to it ends in what it hears."""
    lens = lens_of(name)
    horizon = 8 if name == "chronos" else lens.adapter.longest_pass + 3
    stack = lens.wiring.output_stack
    last = Component(stack.name, stack.n_layers - 1, stack.rows(stack.n_layers - 1)[-1].kind)
    earlier = Component(stack.name, 0, list(stack.attentions(0))[-1].kind)
    samples = 6 if lens.adapter.readout != "quantile" else None
    pair = runs_of(name, horizon, select=0, rollout=True, num_samples=samples, seed=3)
    paths = path_patching(*pair, senders=[earlier, last], receivers=[last, "output"], direction="noise")
    whole = activation_patching(*pair, at=[last], positions="all", direction="noise")
    assert_close(paths["forecast"].values[1, 1], whole["forecast"].values[0, 0], depth=100, dtype=np.float32)
    heard = paths["forecast"].values[0, 0]
    assert np.isfinite(heard).all()
    assert np.abs(heard - paths["clean_forecast"].values).max() > 0

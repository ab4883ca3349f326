"""Running with hooks: caching, TransformerLens's methods, gradients, safety of the
caller's tensors.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from refusals import expect_error
from tsfm_lens.models import Lens
from tsfm_lens.testing import Case, assert_close, native_traces

POST = "decoder_blocks.0.hook_resid_post"
PATTERN = "decoder_blocks.0.self_attn.hook_pattern"


def test_predicates_globs_and_unknown_names(token_lens: Lens, token_case: Case) -> None:
    names: list = []
    keep = lambda value, hook: names.append(hook.name)  # noqa: E731
    token_lens.run_with_hooks(
        token_case.encoded, [(lambda name: name.endswith("hook_embed"), keep)]
    )
    token_lens.run_with_hooks(token_case.encoded, [("*.hook_embed", keep)])
    assert names == ["encoder.hook_embed", "decoder.hook_embed"] * 2
    encoded = token_case.encoded
    run = token_lens.run(token_case.batch, 2)
    cached = token_lens.run_with_cache
    hooked = token_lens.run_with_hooks
    expect_error("loss=fn", cached, encoded, incl_bwd=True)
    expect_error("true of no hook point", hooked, encoded, [(lambda name: False, keep)])
    for nothing in (lambda name: False, [], iter(())):
        expect_error("selects no hook point", cached, encoded, names_filter=nothing)
    expect_error(
        r"Closest: decoder\.1\.cross_attn",
        cached,
        encoded,
        names_filter="decoder.1.cross_attn.99",
    )
    expect_error("no hook point is given", run.record, [])
    expect_error(
        "fwd_hooks has 'a'; expected a list of pairs", hooked, encoded, ("a", keep)
    )
    expect_error(
        "hook <lambda> cannot be called as",
        hooked,
        encoded,
        [("*.hook_embed", lambda value: value)],
    )
    for thing in (run, run.forecast):
        with pytest.raises(AttributeError, match="has no 'logits': lens"):
            thing.logits  # noqa: B018
    expect_error("Closest", cached, encoded, names_filter="decoder_blocks.0.resid_post")


def test_permanent_hooks_stay_until_reset(token_lens: Lens, token_case: Case) -> None:
    plain = token_lens.forward(token_case.encoded)
    token_lens.add_hook("decoder_blocks.*.mlp.hook_out", lambda value, hook: 0 * value)
    try:
        first = token_lens.forward(token_case.encoded)
        second = token_lens.forward(token_case.encoded)
        assert torch.equal(first, second)
        # in every thread
        with ThreadPoolExecutor(1) as pool:
            assert torch.equal(
                pool.submit(token_lens.forward, token_case.encoded).result(), first
            )
        assert not torch.allclose(first, plain)
    finally:
        token_lens.reset_hooks()
    assert torch.equal(token_lens.forward(token_case.encoded), plain)
    assert native_traces(token_lens) == 0


def test_rollouts_have_a_step_axis(token_lens: Lens, token_case: Case) -> None:
    _, activations = token_lens.run_with_cache(
        token_case.batch,
        names_filter=[POST, PATTERN],
        rollout=True,
        horizon=5,
        num_samples=2,
    )
    assert activations[POST].shape == (5, 8, 1, 36)
    assert activations.axes(POST) == ("step", "batch", "pos", "d_model")
    pattern = activations[PATTERN]
    assert pattern.shape == (5, 8, 4, 1, 5)
    # keys that do not exist yet get no attention, and rows still sum to one
    for step in range(5):
        assert not pattern[step, ..., step + 1 :].any()
    assert_close(pattern.sum(-1), torch.ones(5, 8, 4, 1), depth=100)
    labelled = activations.to_xarray(POST)
    assert labelled.dims == ("step", "series", "sample", "pos", "d_model")
    assert labelled["step"].values.tolist() == [0, 1, 2, 3, 4]
    assert labelled["series"].values.tolist() == list(token_case.batch.ids)
    rows = labelled.stack(row=("series", "sample")).transpose("step", "row", ...)
    np.testing.assert_array_equal(rows, activations[POST].cpu())

"""Interventions against the arithmetic they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformer_lens.utilities import Slice

from tsfm_lens.core.errors import HookError, InputError, UnknownNameError
from tsfm_lens.hooks import (
    Activations,
    EditPattern,
    Mean,
    Noise,
    PatchFrom,
    Resample,
    Steer,
    Zero,
)
from tsfm_lens.models import Lens
from tsfm_lens.testing import Case, assert_close, native_traces

MLP = "decoder_blocks.0.mlp.hook_out"
HEAD = "decoder.1.cross_attn.2"
Z = "decoder_blocks.1.cross_attn.hook_z"


def seen(lens: Lens, case: Case, name: str, *interventions: object) -> torch.Tensor:
    """What stands at a hook point after interventions: a reader set behind them."""
    with torch.no_grad(), lens.edit(*interventions):  # type: ignore[arg-type]
        _, activations = lens.run_with_cache(case.encoded, names_filter=name)
    return activations[name]


def test_rows_and_positions(token_lens: Lens, token_case: Case) -> None:
    before = seen(token_lens, token_case, Z)
    after = seen(token_lens, token_case, Z, Zero(HEAD, rows=[1, -1], positions=[0, -1]))
    expected = before.clone()
    for row in (1, len(before) - 1):
        for position in (0, before.shape[1] - 1):
            expected[row, position, 2] = 0.0
    assert torch.equal(after, expected)
    every = seen(token_lens, token_case, Z, Zero(HEAD))
    assert not every[:, :, 2].any()
    assert torch.equal(every[:, :, [0, 1, 3]], before[:, :, [0, 1, 3]])
    sliced = seen(token_lens, token_case, Z, Zero(HEAD, positions=slice(1, 3)))
    expected = before.clone()
    expected[:, 1:3, 2] = 0.0
    assert torch.equal(sliced, expected)
    masked = seen(
        token_lens,
        token_case,
        Z,
        Zero(HEAD, rows=torch.tensor([True, False, False, True])),
    )
    assert torch.equal(masked[1:3], before[1:3])
    assert not masked[[0, 3], :, 2].any()


def test_mean_is_the_mean(token_lens: Lens, token_case: Case) -> None:
    _, activations = token_lens.run_with_cache(token_case.encoded, names_filter=MLP)
    values = activations[MLP].double().numpy()
    per_position = seen(token_lens, token_case, MLP, Mean(MLP, activations))
    assert_close(per_position[1], values.mean(axis=0), depth=100, dtype=np.float32)
    pooled = seen(token_lens, token_case, MLP, Mean(MLP, activations, per="pooled"))
    assert_close(pooled[2, 3], values.mean(axis=(0, 1)), depth=100, dtype=np.float32)
    short = token_lens.encode(token_case.batch)
    _, activations = token_lens.run_with_cache(short, names_filter=MLP)
    with pytest.raises(HookError, match="the reference set covers 1 positions"):
        seen(token_lens, token_case, MLP, Mean(MLP, activations))


def test_noise_has_the_scale_it_says(token_lens: Lens, token_case: Case) -> None:
    before = seen(token_lens, token_case, MLP)
    after = seen(token_lens, token_case, MLP, Noise(MLP, scale=0.25, seed=1))
    again = seen(token_lens, token_case, MLP, Noise(MLP, scale=0.25, seed=1))
    other = seen(token_lens, token_case, MLP, Noise(MLP, scale=0.25, seed=2))
    ratio = (after - before).pow(2).mean((1, 2)).sqrt() / before.pow(2).mean(
        (1, 2)
    ).sqrt()
    draws = before[0].numel()
    # a spread of so many draws is known to 1 / sqrt(2 n) of itself; five of these
    np.testing.assert_allclose(ratio, 0.25, rtol=5 * (2 * draws) ** -0.5)
    assert torch.equal(after, again)
    assert not torch.equal(after, other)


def test_steer_adds_vectors_at_every_level(token_lens: Lens, token_case: Case) -> None:
    """Steering adds a vector to a layer, a branch or a head."""
    vector = torch.arange(float(token_lens.d_model))
    for target, at in (
        ("decoder.0", "decoder_blocks.0.hook_resid_post"),
        ("decoder.0.mlp", MLP),
    ):
        before = seen(token_lens, token_case, at)
        after = seen(token_lens, token_case, at, Steer(target, vector, scale=-2.0))
        assert_close(after, before - 2.0 * vector, depth=100)


def test_edited_pattern_averages_the_values(token_lens: Lens, token_case: Case) -> None:
    """An edited pattern gives the mean of the values it attends to."""

    def uniform(pattern: torch.Tensor) -> torch.Tensor:
        pattern[:] = 1.0 / pattern.shape[-1]
        return pattern

    v_name = "decoder_blocks.1.cross_attn.hook_v"
    after = seen(token_lens, token_case, Z, EditPattern(HEAD, uniform))
    before = seen(token_lens, token_case, Z)
    v = seen(token_lens, token_case, v_name)
    assert_close(after[:, 0, 2], v.mean(dim=1)[:, 2], depth=1000, dtype=np.float32)
    assert_close(after[:, :, [0, 1, 3]], before[:, :, [0, 1, 3]], depth=100)


REFUSED: list[tuple[Callable[[Activations], object], type[Exception], str]] = [
    *(
        (lambda acts, rows=rows: Zero(HEAD, rows=rows), InputError, "rows")
        for rows in ([9], [-9], [True])
    ),
    (lambda acts: Mean(MLP, acts, per="series"), InputError, "'pooled'"),
    (
        lambda acts: Steer("decoder.0.mlp", torch.ones(3)),
        HookError,
        r"a vector of shape \(3,\) does not fit",
    ),
    (
        lambda acts: EditPattern("decoder.1.mlp", torch.clone),
        HookError,
        "EditPattern needs an attention .*an MLP",
    ),
    (lambda acts: Zero("decoder.7.mlp"), UnknownNameError, "Closest: decoder"),
    (
        lambda acts: PatchFrom(MLP, acts, rows=[0, 1]),
        HookError,
        "do not fit the 2 rows",
    ),
    (
        lambda acts: PatchFrom("decoder_blocks.1.mlp.hook_out", acts),
        UnknownNameError,
        "no recorded activation",
    ),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_what_cannot_act_is_refused(
    token_lens: Lens,
    token_case: Case,
    make: Callable[[Activations], object],
    error: type[Exception],
    message: str,
) -> None:
    _, activations = token_lens.run_with_cache(token_case.encoded, names_filter=MLP)
    with pytest.raises(error, match=message):
        seen(token_lens, token_case, MLP, Zero(HEAD), make(activations))
    assert native_traces(token_lens) == 0


@pytest.mark.parametrize(
    "positions",
    [
        [500],
        500,
        [0, -500],
        slice(500, None),
        torch.arange(600) == 550,
        [],
        Slice([500]),
    ],
)
@pytest.mark.parametrize("target", ["encoder.1.mlp", Z, "encoder.*.self_attn.1"])
def test_positions_out_of_range_are_refused(
    token_lens: Lens, token_case: Case, target: str, positions: Any
) -> None:
    """Positions that no pass has are refused, as rows are; they would do nothing."""
    edits = [Zero(target, positions=positions), Noise(target, positions=positions)]
    if target == Z:
        edits.append(Steer(target, torch.ones(1), positions=positions))
    else:
        edits.append(EditPattern("encoder.0.self_attn", torch.relu, None, positions))
    for edit in edits:
        with pytest.raises(InputError, match=r"hook.*(length|none of) \d"):
            seen(token_lens, token_case, Z, edit)


def test_positions_at_the_edges(token_lens: Lens, token_case: Case) -> None:
    """Both ends of the range are positions, one beyond is refused with the range."""
    length = seen(token_lens, token_case, Z).shape[1]
    for position in (length - 1, -length):
        assert not seen(token_lens, token_case, Z, Zero(Z, positions=[position]))[
            :, position
        ].any()
    for position in (length, -length - 1):
        with pytest.raises(InputError, match=f"{position} is out.*0 to {length - 1}"):
            seen(token_lens, token_case, Z, Zero(Z, positions=[position]))
    # an encoder has more positions than a decoder, and a glob may name both
    seen(token_lens, token_case, Z, Zero("**.mlp", positions=[length]))
    with pytest.raises(InputError, match=r"rows: slice.*none of"):
        seen(token_lens, token_case, Z, Zero(Z, rows=slice(500, None)))
    for which in (500, [0, 500]):
        options = {"names_filter": Z, "pos_slice": which}
        with pytest.raises(InputError, match=f"{Z}.*500.*0 to {length - 1}"):
            token_lens.run_with_cache(token_case.encoded, **options)
    _, cache = token_lens.run_with_cache(token_case.encoded)
    with pytest.raises(InputError, match=f"500.*0 to {length - 1}"):
        cache.accumulated_resid(pos_slice=500)


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, Slice])
def test_masks_of_positions_are_masks(
    token_lens: Lens, token_case: Case, kind: Any
) -> None:
    """A mask of any kind chooses where it is true, as integers of any kind do."""
    length = seen(token_lens, token_case, Z).shape[1]
    mask = kind([step in (2, 3) for step in range(length)])
    expected = seen(token_lens, token_case, Z, Zero(Z, positions=[2, 3]))
    for positions in (mask, torch.tensor([2, 3], dtype=torch.uint8)):
        after = seen(token_lens, token_case, Z, Zero(Z, positions=positions))
        assert torch.equal(after, expected)
    for option in ("rows", "positions"):
        edit = Zero(Z, **{option: slice(None, None, -1)})
        with pytest.raises(InputError, match="forwards"):
            seen(token_lens, token_case, Z, edit)


@pytest.mark.parametrize("wrong", ["Trafo 1", ["Trafo 1"], [0.5], None, {}])
@pytest.mark.parametrize("option", ["rows", "positions"])
def test_rows_are_integers(
    token_lens: Lens, token_case: Case, option: str, wrong: Any
) -> None:
    """Rows and positions that are no integers are refused in words; None is all."""
    edit = Zero(Z, **{option: wrong})
    if wrong is None:
        assert not seen(token_lens, token_case, Z, edit).any()
        return
    with pytest.raises(InputError, match=f"{Z}: {option}.*expected integers"):
        seen(token_lens, token_case, Z, edit)


def test_sources_are_activations(token_lens: Lens, token_case: Case) -> None:
    """A run, or a tensor, in place of its activations is refused when it is given."""
    run = token_lens.run(token_case.batch, 4)
    for wrong in (run, torch.zeros(3)):
        for kind in (PatchFrom, Mean, Resample):
            with pytest.raises(InputError, match=r"holds no.*run.record\(\[names"):
                kind(Z, wrong)
        with pytest.raises(InputError, match="holds no activations"):
            token_lens.patch(wrong, Z)


def test_lists_of_names_are_names(token_lens: Lens, token_case: Case) -> None:
    """A list of components does what they do one by one."""
    names = ["decoder.0.mlp", "decoder.1.cross_attn.*"]
    run = token_lens.run(token_case.batch, 4)
    acts = run.record(["**.hook_z"])
    for one, other in (
        (token_lens.ablate(*names), token_lens.ablate(names)),
        (token_lens.patch(acts, HEAD), token_lens.patch(acts, [HEAD])),
    ):
        assert repr(one) == repr(other)
        assert "Block(" in repr(one)
        results = []
        for block in (one, other):
            with torch.no_grad(), block:
                results.append(token_lens.forward(run.encoded))
        assert torch.equal(*results)
    assert token_lens.components(names) == token_lens.components(*names)
    assert run.without(names).identical(run.without(*names))


# --- rollouts
# --------------------------------------------------------------------------------------


def test_positions_count_through_the_cache(token_lens: Lens, token_case: Case) -> None:
    """An edit at decoder position 3 of a cached rollout leaves the first three steps,
    and only these.
    """
    plain = token_lens.forecast(token_case.batch, 6, num_samples=8, seed=5).samples
    with (
        pytest.raises(InputError, match="6 is out of range for length 6"),
        token_lens.edit(Zero("decoder.*", positions=[6])),
    ):
        token_lens.forecast(token_case.batch, 6, num_samples=8, seed=5)
    with token_lens.edit(Zero("decoder.*", positions=[3])):
        late = token_lens.forecast(token_case.batch, 6, num_samples=8, seed=5).samples
    assert plain is not None
    assert late is not None
    np.testing.assert_array_equal(late[:, :, :3], plain[:, :, :3])
    assert (late[:, :, 3:] != plain[:, :, 3:]).any()


def test_patching_one_rollout_into_another(token_lens: Lens, token_case: Case) -> None:
    """All decoder streams of run A in run B, on B's own encoder, give A's tokens."""
    name = "decoder_blocks.1.hook_resid_post"
    run: dict = {"horizon": 4, "num_samples": 3, "seed": 7}
    ours, activations = token_lens.run_with_cache(
        token_case.batch, names_filter=name, rollout=True, **run
    )
    with token_lens.ablate("encoder.*"), token_lens.patch(activations, name):
        theirs = token_lens.forecast(token_case.batch, **run)
    np.testing.assert_array_equal(ours.samples, theirs.samples)


def test_edits_never_overwrite_another_hooks_tensor(
    token_lens: Lens, token_case: Case
) -> None:
    """A tensor that another hook returned is not written to."""
    with torch.no_grad():
        _, activations = token_lens.run_with_cache(token_case.encoded, names_filter=Z)
    given = 2 * activations[Z]
    expected = given.clone()
    edits = (Zero(HEAD, rows=[0], positions=[1]), Zero(HEAD, rows=[1]))
    with token_lens.hooks([(Z, lambda value, hook: given)]), token_lens.edit(*edits):
        _, after = token_lens.run_with_cache(token_case.encoded, names_filter=Z)
    assert torch.equal(given, expected)
    expected[0, 1, 2] = expected[1, :, 2] = 0.0
    assert torch.equal(after[Z], expected)


@pytest.mark.parametrize("gradients", [False, True])
def test_edits_of_rows_act_independently(
    token_lens: Lens, token_case: Case, gradients: bool
) -> None:
    """Edits of many rows at one point act on each row alone."""
    rows = len(token_case.encoded.rows)
    edits = [
        Steer(
            Z, torch.full((token_lens.wiring.output_stack.d_head,), float(i)), rows=[i]
        )
        for i in range(rows)
    ]
    edits.append(
        Steer(
            Z,
            torch.ones(token_lens.wiring.output_stack.d_head),
            scale=0.5,
            positions=slice(1, None),
        )
    )
    with torch.no_grad():
        _, before = token_lens.run_with_cache(token_case.encoded, names_filter=Z)
    with torch.set_grad_enabled(gradients), token_lens.edit(*edits):
        _, after = token_lens.run_with_cache(token_case.encoded, names_filter=Z)
    expected = before[Z] + torch.arange(rows).reshape(-1, 1, 1, 1)
    expected[:, 1:] += 0.5
    assert_close(after[Z], expected, depth=4)

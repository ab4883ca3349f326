"""What a user of TransformerLens calls on a model does the same on a lens, or is
refused with the call that does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule, patching
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.utilities import Slice

import tsfm_lens
from tsfm_lens.core.errors import HookError, InputError, LensError
from tsfm_lens.models import Lens, Run
from tsfm_lens.testing import assert_close

MODELS = ("chronos-nano", "bolt-nano", "chronos2-nano")
SERIES = [10 + np.sin(np.arange(60) / 2.0), 12 + np.cos(np.arange(60) / 3.0)]
STACK = {
    "chronos-nano": "decoder_blocks",
    "bolt-nano": "decoder_blocks",
    "chronos2-nano": "blocks",
}


@cache
def opened(name: str) -> Run:
    return tsfm_lens.load(name).run(SERIES, 4)


@pytest.fixture(params=MODELS)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    made = opened(request.param)
    make_plain(request.param)
    yield made
    made.lens.reset_hooks(including_permanent=True)
    made.lens.eval()
    made.lens.requires_grad_(True).zero_grad()


def at(run: Run, layer: int, name: str) -> str:
    return f"{STACK[run.lens.model_id]}.{layer}.{name}"


def attention(run: Run) -> str:
    if run.lens.model_id == "chronos2-nano":
        return "time_attn"
    return "cross_attn"


def plain(run: Run) -> Tensor:
    with torch.no_grad():
        return run.lens(run.encoded)


def is_plain(run: Run) -> bool:
    return torch.equal(plain(run), make_plain(run.lens.model_id))


@cache
def make_plain(name: str) -> Tensor:
    return plain(opened(name))


def half(value: Tensor, hook: HookPoint) -> Tensor:
    return 0.5 * value


# --- hooks of a block, and hooks that stay
# ----------------------------------------------------------------------


def test_lens_is_a_hooked_root_module(run: Run) -> None:
    """A lens is a HookedRootModule."""
    lens = run.lens
    assert isinstance(lens, HookedRootModule)
    assert all(isinstance(point, HookPoint) for point in lens.hook_points())
    assert set(lens.hook_dict) == {name for name, _axes in lens.hook_table()}
    assert all(point.name == name for name, point in lens.hook_dict.items())
    assert {
        lens.hook_dict[name].layer() for name in lens.hook_dict if ".0." in name
    } == {0}


def test_hooks_act_in_setting_order(run: Run) -> None:
    """Hooks act in the order in which they were set."""
    lens = run.lens
    point = at(run, 1, "mlp.hook_out")
    seen = list[str]()

    def note(value: Tensor, hook: HookPoint, *, mark: str) -> None:
        seen.append(mark)

    lens.add_hook(point, partial(note, mark="second"))
    lens.add_hook(point, partial(note, mark="third"))
    lens.add_hook(point, partial(note, mark="first"), prepend=True)
    with lens.hooks(
        [(point, partial(note, mark="fourth")), (point, partial(note, mark="fifth"))]
    ):
        plain(run)
    assert seen == ["first", "second", "third", "fourth", "fifth"]
    assert [len(handles) for handles in lens.list_hooks().values()] == [3]


def test_blocks_have_levels(run: Run) -> None:
    lens = run.lens
    outer = at(run, 0, "mlp.hook_out")
    inner = at(run, 1, "mlp.hook_out")
    assert lens.context_level == 0
    with lens.hooks([(outer, half)]):
        assert lens.context_level == 1
        alone = plain(run)
        with lens.hooks([(inner, half)]):
            assert lens.context_level == 2
            levels = {
                point: lens.hook_dict[point].fwd_hooks[0].context_level
                for point in (outer, inner)
            }
            assert levels == {outer: 1, inner: 2}
            lens.reset_hooks(level=2)
            assert torch.equal(plain(run), alone)
            with lens.ablate(
                f"{'decoder.' if STACK[lens.model_id] != 'blocks' else ''}1.mlp"
            ):
                assert lens.context_level == 3
        assert lens.context_level == 1
        lens.reset_hooks(level=1)
        assert is_plain(run)
    assert lens.context_level == 0
    assert not lens.list_hooks()


def test_reset_backward_hook_expects_no_gradient(run: Run) -> None:
    """A backward hook that was reset waits for no gradient."""
    with run.lens.hooks(
        bwd_hooks=[(at(run, 0, "mlp.hook_out"), lambda grad, hook: None)]
    ):
        run.lens(run.encoded)
        run.lens.reset_hooks(level=1)


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_a_reset_of_one_direction(run: Run, direction: str) -> None:
    lens = run.lens
    point = at(run, 0, "mlp.hook_out")
    lens.add_hook(point, half, dir="fwd")
    lens.add_hook(point, lambda grad, hook: None, dir="bwd")
    lens.reset_hooks(direction=direction)  # type: ignore[arg-type]
    left = lens.hook_dict[point]
    assert (len(left.fwd_hooks), len(left.bwd_hooks)) == (
        (0, 1) if direction == "fwd" else (1, 0)
    )


def test_hook_points_themselves_are_accepted(run: Run) -> None:
    """A hook point itself may be given in place of its name."""
    lens = run.lens
    name = at(run, 0, "mlp.hook_out")
    point = lens.hook_dict[name]
    expected = lens.run_with_hooks(run.encoded, [(name, half)])
    assert torch.equal(lens.run_with_hooks(run.encoded, [(point, half)]), expected)
    lens.add_hook(point, half)
    assert torch.equal(lens(run.encoded), expected)
    lens.reset_hooks()
    assert list(lens.run_with_cache(run.encoded, names_filter=point)[1]) == [name]
    assert name in run.record([point])


@pytest.mark.parametrize("name", [3, None, 2.5])
def test_names_without_hook_point_are_refused(run: Run, name: Any) -> None:
    """What names no hook point is refused."""
    with pytest.raises(InputError, match=r"names no hook point.*lens.hook_table\(\)"):
        run.record([name])


# --- hooks that set hooks
# --------------------------------------------------------------------------------------

LATER = [
    ("0.hook_resid_pre", "0.hook_resid_mid"),
    ("0.hook_resid_pre", "0.ATTN.hook_pattern"),
    ("0.ATTN.hook_q", "0.ATTN.hook_pattern"),
    ("1.ATTN.hook_z", "1.ATTN.hook_out"),
    ("1.mlp.hook_out", "1.hook_resid_post"),
]


@pytest.mark.parametrize(
    ("first", "second", "by"),
    [
        *((*pair, "lens") for pair in LATER),
        *((*LATER[1], by) for by in ("hook point", "block")),
    ],
)
def test_hooks_set_by_hooks_act_later(
    run: Run, first: str, second: str, by: str
) -> None:
    """A hook that a hook sets acts further down in the same pass."""
    lens = run.lens
    first, second = (
        at(run, int(item[0]), item[2:].replace("ATTN", attention(run)))
        for item in (first, second)
    )
    blocks: list[Any] = []

    def other(value: Tensor, hook: HookPoint) -> None:
        if by == "lens":
            lens.add_hook(second, half)
        elif by == "hook point":
            lens.hook_dict[second].add_hook(half)
        else:
            blocks.append(lens.hooks([(second, half)]))
            blocks[-1].__enter__()

    with torch.no_grad():
        # a hook at the first point has attention computed step by step, if that is
        # inside of it
        expected = lens.run_with_hooks(
            run.encoded, [(first, lambda value, hook: None), (second, half)]
        )
        found = lens.run_with_hooks(run.encoded, [(first, other)])
    for block in blocks:
        block.__exit__(None, None, None)
    assert torch.equal(found, expected)
    assert not torch.equal(found, make_plain(lens.model_id))
    lens.reset_hooks()
    assert is_plain(run)


# --- gradients
# --------------------------------------------------------------------------------------


def compute_loss(output: Tensor) -> Tensor:
    return output.double().square().mean()


def points_of_all_kinds(run: Run) -> list[str]:
    kind = attention(run)
    names = (
        "hook_resid_pre",
        f"{kind}.hook_z",
        f"{kind}.hook_q",
        f"{kind}.hook_pattern",
        f"{kind}.hook_out",
    )
    return [
        at(run, 1, name)
        for name in (*names, "mlp.hook_post", "mlp.hook_out", "hook_resid_post")
    ]


@pytest.mark.parametrize("returned", [False, True])
def test_a_value_keeps_its_gradient(run: Run, returned: bool) -> None:
    lens = run.lens
    names = points_of_all_kinds(run)
    retained = dict[str, Tensor]()

    def keep(value: Tensor, hook: HookPoint) -> Tensor | None:
        value.retain_grad()
        retained[str(hook.name)] = value
        if returned:
            return value
        return None

    # one hook at a time and no other, as a record of gradients is made
    for name in names:
        compute_loss(lens.run_with_hooks(run.encoded, [(name, keep)])).backward()
        expected = lens.run_with_cache(
            run.encoded, names_filter=name, incl_bwd=True, loss=compute_loss
        )[1][f"{name}_grad"]
        found = retained[name].grad
        assert found is not None
        assert_close(found, expected, depth=1000)
        assert bool(expected.any())


def test_a_value_may_become_a_leaf(run: Run) -> None:
    """Gradients of activations alone: weights take none."""
    lens = run.lens
    name = at(run, 1, "hook_resid_pre")
    retained = list[Tensor]()
    lens.requires_grad_(False)

    def keep(value: Tensor, hook: HookPoint) -> None:
        retained.append(value.requires_grad_())

    compute_loss(lens.run_with_hooks(run.encoded, [(name, keep)])).backward()
    assert retained[0].grad is not None
    assert bool(retained[0].grad.any())
    assert all(weight.grad is None for weight in lens.parameters())


# --- the module
# --------------------------------------------------------------------------------------


def test_modes_reach_the_model(run: Run) -> None:
    lens = tsfm_lens.load(run.lens.model_id)
    for module in lens.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    modules = [*lens.modules(), *lens.model.modules()]
    assert not lens.training
    assert not any(module.training for module in modules)
    assert torch.equal(lens(run.encoded), lens(run.encoded))
    assert lens.train() is lens
    assert lens.training
    assert all(module.training for module in modules)
    assert not torch.equal(lens(run.encoded), lens(run.encoded))
    lens.model.eval()
    assert not lens.training
    assert lens.train().eval() is lens
    assert torch.equal(lens(run.encoded), run.lens(run.encoded))


def test_state_is_that_of_the_model(run: Run) -> None:
    lens, native = copy.deepcopy(run.lens), run.lens.model.state_dict()
    assert list(lens.state_dict()) == list(native)
    for name, value in lens.state_dict().items():
        assert torch.equal(value, native[name])
    for members_of in ("named_parameters", "named_buffers"):
        ours, theirs = (getattr(item, members_of)() for item in (lens, lens.model))
        assert [(name, id(x)) for name, x in ours] == [(n, id(x)) for n, x in theirs]
    name, weight = next(lens.named_parameters())
    assert lens.get_parameter(name) is weight
    lens.load_state_dict({name: 2 * value for name, value in native.items()})
    assert torch.equal(weight, 2 * native[name])
    assert not torch.equal(lens(run.encoded).detach(), plain(run))
    with pytest.raises(RuntimeError, match=r"Unexpected key|Missing key"):
        lens.load_state_dict({"other": torch.zeros(1)})


CASTS: dict[str, tuple[Callable[[Lens], Any], torch.dtype]] = {
    "half": (Lens.half, torch.float16),
    "to": (lambda lens: lens.to(torch.bfloat16), torch.bfloat16),
    "type": (lambda lens: lens.type(torch.bfloat16), torch.bfloat16),
    "float": (lambda lens: lens.half().float(), torch.float32),
    "double": (Lens.double, torch.float64),
}


@pytest.mark.parametrize("cast", CASTS)
def test_precisions_reach_the_model(run: Run, cast: str) -> None:
    lens = copy.deepcopy(run.lens)
    act, dtype = CASTS[cast]
    if str(dtype).removeprefix("torch.") not in lens.adapter.dtypes:
        with pytest.raises(
            InputError, match=f"does not run in {str(dtype)[6:]}; choose float32"
        ):
            act(lens)
        dtype = torch.float32
    else:
        assert act(lens) is lens
    assert {weight.dtype for weight in lens.model.parameters()} == {dtype}
    assert lens.cfg.dtype == dtype


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", "gpu", 0])
def test_devices_that_are_not_here(run: Run, device: Any) -> None:
    moves: list[Callable[[], Any]] = [
        lambda: tsfm_lens.load(run.lens.model_id, device=device),
        lambda: run.lens.to(device),
        lambda: run.lens.to(device=device),
        lambda: run.lens.run_with_cache(run.encoded, device=device),
    ]
    for move in moves:
        with pytest.raises(
            InputError, match=f"no device '{device}' here; there is cpu"
        ):
            move()
    with pytest.raises(InputError, match="no device 'cuda' here"):
        run.lens.cuda()
    assert tsfm_lens.load(run.lens.model_id, device="cpu").device.type == "cpu"


@pytest.mark.parametrize(
    "set_hook",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
    ],
)
def test_torch_hooks_reach_the_native_module(run: Run, set_hook: str) -> None:
    """Hooks of torch go to the native module."""
    point = at(run, 1, "mlp.hook_out")
    with pytest.raises(
        HookError, match=r"lens.model.get_submodule\('(.*)'\)"
    ) as refused:
        getattr(run.lens.hook_dict[point], set_hook)(lambda *call: None)
    path = str(refused.value).split("get_submodule('")[1].split("')")[0]
    seen = list[Tensor]()
    handle = run.lens.model.get_submodule(path).register_forward_hook(
        lambda module, args, output: seen.append(output)
    )
    activations = run.lens.run_with_cache(run.encoded, names_filter=point)[1]
    handle.remove()
    assert torch.equal(
        (seen[0] if isinstance(seen[0], Tensor) else seen[0][0]).reshape(
            activations[point].shape
        ),
        activations[point],
    )


# --- the cache
# --------------------------------------------------------------------------------------


SLICES = [Slice((0, 1)), Slice(-1), Slice([0]), Slice(None), Slice(0)]


@pytest.mark.parametrize("which", SLICES, ids=str)
def test_slices_are_taken_everywhere(run: Run, which: Slice) -> None:
    lens = run.lens
    plain_slice = None if which.mode == "identity" else which.slice
    if isinstance(plain_slice, np.ndarray):
        plain_slice = plain_slice.tolist()
    if isinstance(plain_slice, slice):
        plain_slice = (plain_slice.start, plain_slice.stop)
    activations = lens.run_with_cache(run.encoded, names_filter=None)[1]
    for method in ("decompose_resid", "accumulated_resid", "stack_head_results"):
        found, expected = (
            getattr(activations, method)(pos_slice=item)
            for item in (which, plain_slice)
        )
        # as in TransformerLens, a number keeps the axis, and a slice of one leaves it
        # out
        assert torch.equal(
            found, expected.squeeze(-2) if which.mode == "int" else expected
        ), method
    name = at(run, 1, "hook_resid_pre")
    trimmed = lens.run_with_cache(run.encoded, names_filter=name, pos_slice=which)[1][
        name
    ]
    assert_close(trimmed, which.apply(activations[name], dim=1), depth=1000)

    def ablated(rows: Any, positions: Any) -> Tensor:
        with torch.no_grad(), lens.ablate("**.mlp", rows=rows, positions=positions):
            return lens(run.encoded)

    if which.mode != "identity":
        assert torch.equal(ablated(None, which), ablated(None, which.slice))
        assert torch.equal(ablated(which, None), ablated(which.slice, None))


def test_parts_are_read_where_they_sum(run: Run) -> None:
    """Parts are read out where they sum to the forecast, and refused elsewhere."""
    activations = run.lens.run_with_cache(run.encoded)[1]
    last = activations[at(run, run.lens.cfg.n_layers - 1, "hook_resid_post")]
    writes = activations.decompose_resid()
    if run.lens.emits == "token":
        parts = run.lens.readout(writes, run.encoded, like=last)
        assert_close(parts.sum(0), plain(run), depth=1000)
        return
    with pytest.raises(InputError, match=r"no linear map.*probes.attribution\(run\)"):
        run.lens.readout(writes, run.encoded, like=last)
    # the advice is followed: the parts that it gives do sum
    data = run.attribute()
    total = data["attribution"].sum("component")
    assert_close(
        total, data["total"].broadcast_like(total), depth=100_000, dtype=np.float32
    )


# --- patching
# --------------------------------------------------------------------------------------

PATCHES = [
    name
    for name in dir(patching)
    if name.startswith("get_act_patch") and "direct_path" not in name
]
TOKENS: dict[str, Callable[[Run], Any]] = {
    "encoded": lambda run: run.encoded,
    "tensor": lambda run: torch.tensor(np.stack(SERIES)),
    # fewer steps than the model has tokens: a loop over steps would end without a word
    "short array": lambda run: np.stack(SERIES)[:, -5:],
}


@pytest.mark.parametrize("tokens", TOKENS)
def test_foreign_patch_loops_name_our_function(run: Run, tokens: str) -> None:
    """Loops over patches are refused, and the message names our function."""
    activations = run.lens.run_with_cache(run.encoded)[1]
    assert len(PATCHES) > 15
    # a few of them with each other form of tokens
    for patch in PATCHES if tokens == "encoded" else PATCHES[::6]:
        with pytest.raises(
            (LensError, AttributeError),
            match=r"probes.activation_patching\(clean, corrupted\)",
        ):
            getattr(patching, patch)(
                run.lens, TOKENS[tokens](run), activations, torch.mean
            )
    assert not run.lens.list_hooks()
    assert is_plain(run)


@pytest.mark.parametrize(
    "name",
    ["hook_resid_pre", "mlp.hook_out", "ATTN.hook_z", "ATTN.hook_q", "ATTN.hook_v"],
)
def test_own_patch_equals_the_peers(run: Run, name: str) -> None:
    """A patch of ours is that of the peer."""
    # the decoder of Bolt has one token
    point = at(run, 1, name.replace("ATTN", attention(run)))
    position = 0
    other = run.lens.run([series[::-1].copy() for series in SERIES], 4)
    activations = run.lens.run_with_cache(other.encoded, names_filter=point)[1]

    def put(value: Tensor, hook: HookPoint) -> Tensor:
        return patching.layer_pos_patch_setter(
            value.clone(), [1, position], activations[point]
        )

    with torch.no_grad(), run.lens.patch(activations, point, positions=[position]):
        found = run.lens(run.encoded)
    assert_close(
        found, run.lens.run_with_hooks(run.encoded, [(point, put)]).detach(), depth=1000
    )
    assert name.endswith("_v") or not torch.equal(found, plain(run))


# --- what there is not
# --------------------------------------------------------------------------------------


def find_hint(thing: Any, member: str) -> str:
    """The hint for a member of a peer; "" where there is one of the same name."""
    try:
        getattr(thing, member)
    except AttributeError as error:
        text = str(error)
        assert f"no {member!r}: " in text, f"{member}: {text}"
        return text.split(": ", 1)[1]
    return ""


def members(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def test_model_members_exist_or_name_substitutes(run: Run) -> None:
    """Every member of a model is there or names what to use."""
    hints = [
        hint
        for name in members(TransformerBridge)
        if (hint := find_hint(run.lens, name))
    ]
    assert len(hints) > 40
    assert all(len(hint) > 10 for hint in hints)


def test_cache_members_exist_or_name_substitutes(run: Run) -> None:
    """Every member of a cache is there or names what to use."""
    activations = run.record([at(run, 0, "mlp.hook_out")])
    hints = [
        hint
        for name in members(ActivationCache)
        if (hint := find_hint(activations, name))
    ]
    assert len(hints) > 4
    assert all(len(hint) > 10 for hint in hints)


def test_options_of_ablation_are_checked(run: Run) -> None:
    with pytest.raises(InputError, match="a zero ablation takes no 'seed'"):
        run.lens.ablate("**.mlp", seed=1)
    with pytest.raises(InputError, match="takes no 'positons'"):
        run.lens.ablate("**.mlp", positons="mean")
    with run.lens.ablate("**.mlp", how="noise", seed=1, scale=0.5):
        assert not is_plain(run)

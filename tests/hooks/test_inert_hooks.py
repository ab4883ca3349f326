"""A hook that cannot act says so, whatever passes it by."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.checkpoint import checkpoint

from tiny_lenses import ATTENDING, archetypes, fresh
from tsfm_lens.core.errors import HookError, InputError, WiringError
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import example_case, native_traces

EACH = pytest.mark.parametrize("name", archetypes(ATTENDING))


def last_attention(lens: Lens) -> tuple[nn.Module, str, str, str]:
    """The last attention: the module that holds its output projection, that one's name,
    hook_z, and a head.
    """
    stack = lens.wiring.output_stack
    layer = stack.n_layers - 1
    row = list(stack.attentions(layer))[-1]
    *path, last = f"{stack.block(layer)}.{row.o.module}".split(".")
    head = f"{stack.name}.{layer}.{row.kind}.0".removeprefix(".")
    z = f"{stack.prefix}.{layer}.{row.kind}.hook_z"
    return lens.adapter.model.get_submodule(".".join(path)), last, z, head


def bypass_output(lens: Lens) -> None:
    """Let the last attention use its output projection without calling it, as fused
    code does.
    """
    parent, name, _z, _head = last_attention(lens)
    projection = getattr(parent, name)
    parent.__dict__[name] = projection.forward


def nothing(value: Tensor, hook: object) -> None:
    """Look at nothing."""


@EACH
def test_edit_never_reached_is_an_error(name: str) -> None:
    """An edit that the model never comes to is an error."""
    lens = fresh(name)
    encoded = example_case(lens, n_series=1).encoded
    _parent, _name, z, head = last_attention(lens)
    bypass_output(lens)
    ways: list[AbstractContextManager[Any]] = [
        lens.ablate(head),
        lens.hooks([(z, nothing)]),
        lens.hooks([(lambda point: point == z, nothing)]),
    ]
    with torch.no_grad():
        for way in ways:
            with (
                pytest.raises(
                    HookError, match=rf"never passed {z}.*which was not called"
                ),
                way,
            ):
                lens.forward(encoded)
        with pytest.raises(HookError, match="never passed"):
            lens.run_with_cache(encoded, names_filter=["**.hook_resid_post", z])
        lens.add_hook(z, nothing)
        with pytest.raises(HookError, match="never passed"):
            lens.forward(encoded)
        lens.reset_hooks()
        # what the model does pass goes on as before, and a block in which nothing ran
        # says nothing
        lens.run_with_cache(encoded, names_filter="**.hook_resid_post")
        with lens.ablate(head):
            pass
        # nor is an error on the way hidden by one about hooks
        with pytest.raises(ZeroDivisionError), lens.ablate(head):
            lens.forward(encoded).numel() / 0
    case = example_case(lens, n_series=1)
    with pytest.raises(HookError, match="never passed"), lens.ablate(head):
        lens.forecast(case.batch, case.horizon)
    assert native_traces(lens) == 0


def test_only_the_encoder_ran(token_lens: Lens) -> None:
    """Hooks in the decoder are not expected to run; those in the encoder are."""
    ids = torch.ones(1, 4, dtype=torch.long)
    encoder = token_lens.adapter.model.encoder
    with token_lens.ablate("encoder.0.mlp", "decoder.0.mlp"):
        encoder(input_ids=ids)
    before = encoder(input_ids=ids)
    with (
        pytest.raises(
            HookError, match=r"never passed encoder_blocks\.0\.mlp\.hook_out"
        ),
        token_lens.ablate("encoder.0.mlp"),
    ):
        token_lens.adapter.model(encoder_outputs=before, decoder_input_ids=ids)


@pytest.fixture
def validation() -> Iterator[None]:
    """Compiling switches the checks of all distributions off."""
    before = Distribution._validate_args
    yield
    Distribution.set_default_validate_args(before)


def compiled(lens: Lens, what: str) -> Callable[[], object]:
    """Compile the model, its first block, or that one's forward, or wrap the block;
    return what undoes it.
    """
    model = lens.adapter.model
    at = lens.wiring.output_stack.block(0)
    block = model.get_submodule(at)
    if what in ("model", "block"):
        module = block
        if what == "model":
            module = model
        module.compile(backend="eager")
        return lambda: setattr(module, "_compiled_call_impl", None)
    if what == "forward":
        block.forward = torch.compile(block.forward, backend="eager")
        return lambda: block.__dict__.pop("forward")
    path, _, last = at.rpartition(".")
    model.get_submodule(path)._modules[last] = torch.compile(block, backend="eager")
    return lambda: model.get_submodule(path)._modules.update({last: block})


@pytest.mark.usefixtures("validation")
@pytest.mark.parametrize("what", ["model", "block", "forward", "wrapped block"])
@EACH
def test_compiled_modules_are_refused(name: str, what: str) -> None:
    lens = fresh(name)
    *_, head = last_attention(lens)
    first = f"{lens.wiring.output_stack.prefix}.0.mlp.hook_out"
    undo = compiled(lens, what)
    with (
        pytest.raises(WiringError, match=r"is compiled.*pass"),
        lens.hooks([(first, nothing)]),
    ):
        pass
    if what == "model":
        with pytest.raises(WiringError, match="is compiled"):
            load(lens.native)
        with pytest.raises(WiringError, match="is compiled"), lens.ablate(head):
            pass
    elif lens.wiring.output_stack.n_layers > 1:
        with lens.ablate(head):  # another block, whose calls do reach their hooks
            pass
    undo()
    with lens.hooks([(first, nothing)]):
        pass
    assert native_traces(lens) == 0


def test_replaced_module_is_named() -> None:
    """A module that was replaced after the lens was made is named."""
    lens = fresh("chronos-bolt")
    block = lens.adapter.model.decoder.block[0]
    block.layer[2] = type(block.layer[2])(lens.adapter.model.config)
    replaced = r"'decoder\.block\.0\.layer\.2.*' was taken out of the model or replaced"
    with pytest.raises(WiringError, match=replaced), lens.ablate("decoder.0.mlp"):
        pass
    with lens.ablate("decoder.1.mlp"):
        pass


@pytest.mark.parametrize("reentrant", [True, False])
@EACH
def test_gradient_checkpoints_are_refused(name: str, reentrant: bool) -> None:
    """backward() runs a checkpointed block again after the context, without hooks."""
    lens = fresh(name)
    encoded = example_case(lens, n_series=1).encoded
    stack = lens.wiring.output_stack
    block = lens.adapter.model.get_submodule(stack.block(0))
    forward = block.forward

    def again(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(
            lambda *inputs: forward(*inputs, **kwargs), *args, use_reentrant=reentrant
        )

    block.forward = again
    with torch.no_grad(), lens.ablate(f"{stack.name}.0.mlp".removeprefix(".")):
        lens.forward(encoded)
    if not next(lens.adapter.model.parameters()).requires_grad:
        pytest.skip("the library turns gradients off")
    refused = pytest.raises(HookError, match="inside a gradient checkpoint")
    with refused, lens.ablate(f"{stack.name}.0.mlp".removeprefix(".")):
        lens.forward(encoded)
    with pytest.raises(HookError, match="inside a gradient checkpoint"):
        lens.run_with_cache(encoded, names_filter=f"{stack.prefix}.0.mlp.hook_out")
    del block.forward
    assert native_traces(lens) == 0


def double(value: Tensor, hook: object) -> Tensor:
    return 2 * value


def double_in_place(value: Tensor, hook: object) -> None:
    value *= 2


@EACH
def test_inference_mode(name: str) -> None:
    lens = fresh(name)
    case = example_case(lens, n_series=1)
    out = f"{lens.wiring.output_stack.prefix}.0.mlp.hook_out"
    *_, head = last_attention(lens)
    found = []
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            hooked = [
                lens.run_with_hooks(case.encoded, [(out, edit)])
                for edit in (double, double_in_place, nothing)
            ]
            with lens.ablate(head):
                ablated, activations = lens.run_with_cache(case.encoded)
                forecast = lens.forecast(case.batch, case.horizon, seed=2)
        found.append(
            (*hooked, ablated, *activations.values(), torch.tensor(forecast.quantiles))
        )
    for plain, inference in zip(*found, strict=True):
        assert torch.equal(plain, inference)
    assert not torch.equal(found[0][0], found[0][2])
    with torch.inference_mode(), pytest.raises(InputError):
        lens.run_with_cache(case.encoded, incl_bwd=True, loss=torch.sum)
    # what was recorded there may enter a graph here
    with lens.patch(activations, out):
        lens.forward(case.encoded).sum().backward()


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda v: v.zero_(),
    "numpy": lambda v: v.detach().numpy().fill(0.0),
    "storage": lambda v: v.untyped_storage().fill_(0),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("write", WRITES)
def test_hook_writes_reach_the_model(
    patch_lens: Lens, write: str, gradients: bool
) -> None:
    """Torch counts the changes of a tensor, but not those that go past it."""
    encoded = example_case(patch_lens, n_series=1).encoded
    point = "decoder_blocks.0.mlp.hook_out"

    def hook(value: Tensor, hook: object) -> None:
        WRITES[write](value)

    def returned(value: Tensor, hook: object) -> Tensor:
        new = value.detach().clone()
        WRITES[write](new)
        return new

    with torch.set_grad_enabled(gradients):
        written = patch_lens.run_with_hooks(encoded, [(point, hook)])
        assert torch.equal(
            written, patch_lens.run_with_hooks(encoded, [(point, returned)])
        )
        assert not torch.equal(written, patch_lens.forward(encoded))


def test_backward_hooks_without_a_backward_pass(patch_lens: Lens) -> None:
    encoded = example_case(patch_lens, n_series=1).encoded
    seen: list[Tensor] = []
    hooks = [("decoder_blocks.0.mlp.hook_out", lambda grad, hook: seen.append(grad))]
    with (
        pytest.raises(HookError, match=r"call backward\(\) inside the block"),
        patch_lens.hooks(bwd_hooks=hooks),
    ):
        loss = patch_lens.forward(encoded).sum()
    with patch_lens.hooks(bwd_hooks=hooks):
        patch_lens.forward(encoded).sum().backward()
    loss.backward()
    assert len(seen) == 1


def test_contexts_may_end_in_any_order(patch_lens: Lens) -> None:
    encoded = example_case(patch_lens, n_series=1).encoded
    with torch.no_grad():
        plain = patch_lens.forward(encoded)
        with patch_lens.ablate("decoder.0.mlp"):
            expected = patch_lens.forward(encoded)
        first = patch_lens.ablate("decoder.0.mlp")
        second = patch_lens.ablate("decoder.0.mlp")
        first.__enter__()
        second.__enter__()
        patch_lens.forward(encoded)
        first.__exit__(None, None, None)
        assert torch.equal(patch_lens.forward(encoded), expected)
        second.__exit__(None, None, None)
        assert torch.equal(patch_lens.forward(encoded), plain)
    assert native_traces(patch_lens) == 0


def test_copied_lens_is_independent() -> None:
    """A copy of a lens is a lens of its own."""
    for name in ("chronos", "chronos-2", "toto-1"):
        lens = fresh(name)
        case = example_case(lens, n_series=1)
        *_, z, head = last_attention(lens)
        control = copy.deepcopy(lens)
        with torch.no_grad():
            plain = lens.forward(case.encoded)
            with control.ablate(head):
                assert torch.equal(lens.forward(case.encoded), plain)
                ablated = control.forward(case.encoded)
            assert torch.equal(control.forward(case.encoded), plain)
            with lens.ablate(head):
                assert torch.equal(lens.forward(case.encoded), ablated)
        assert not torch.equal(ablated, plain)
        control.add_hook(z, double)
        with torch.no_grad():
            assert torch.equal(
                copy.deepcopy(control).forward(case.encoded),
                control.forward(case.encoded),
            )
        for duplicate, what in (
            (copy.deepcopy, lens),
            (pickle.dumps, lens.adapter.model),
        ):
            with (
                lens.ablate(head),
                pytest.raises(HookError, match=r"a context is open.*leave it first"),
            ):
                duplicate(what)

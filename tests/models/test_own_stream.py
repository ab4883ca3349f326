"""Models of one's own whose stream, last norm or blocks are not as usual: what sums is
decomposed, the rest refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from homemade_model import LAYERS, Block, Forecaster, Wired, failed
from refusals import expect_error
from tiny_lenses import fresh
from tsfm_lens import probes
from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.hooks.wiring import Site, Stack
from tsfm_lens.models import Lens
from tsfm_lens.testing import (
    ORACLES,
    assert_close,
    check_wiring,
    example_case,
    rounding,
)


class PostNormBlock(Block):
    """Two branches, and a norm after each sum: the stream is no sum of writes."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attn(x))
        return self.norm2(x + self.mlp(x))


class AttentionFreeBlock(Block):
    """The second branch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm2(x))


def rebuilt(model: Forecaster, block: type[Block]) -> Forecaster:
    """The same weights in blocks of another kind."""
    native = Forecaster(nn.ModuleList(block() for _ in range(LAYERS)))
    native.load_state_dict(model.state_dict())
    return native.eval()


class PostNorm(Wired):
    """A table of plain sums, as one might write it for a model with norms after."""

    def stack(self) -> Stack:
        stack = super().stack()
        attention, mlp = stack.writers
        rows = (
            replace(attention, norm=""),
            replace(mlp, norm="", reads=Site("mlp", "in"), aside=False),
        )
        return replace(stack, writers=rows)


class AttentionFree(Wired):
    """A table without heads, whose sizes are 0."""

    def stack(self) -> Stack:
        stack = super().stack()
        return replace(stack, writers=stack.writers[1:], n_heads=0, d_head=0)


SUMS: dict[str, Callable[[Lens, SeriesBatch], object]] = {
    "attribute": lambda lens, series: probes.attribution(lens.run(series)),
    "component_writes": lambda lens, series: probes.component_writes(lens.run(series)),
    "decompose_resid": (
        lambda lens, series: lens.run_with_cache(series)[1].decompose_resid()
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_only_sums_of_writes_are_decomposed(model: Forecaster, name: str) -> None:
    """A stream that is no sum of writes is not decomposed."""
    lens = Lens(PostNorm(rebuilt(model, PostNormBlock)), "post-norm")
    series = bundled("co2").tail(40)
    full = any(word in name for word in ("full", "layer", "resid"))
    first = r".* first place.* blocks\.0\.hook_resid_mid"
    if full:
        first = ""
    expect_error(
        rf"wiring 'homemade' do not sum to the residual stream{first}.*post-norm",
        SUMS[name],
        lens,
        series,
    )
    # forecasts, ablations and layers claim no sum
    with lens.ablate("0.attn.1"):
        lens.forecast(series)
    probes.logit_lens(lens.run(series))


EDITS = {
    "blocks.1.hook_resid_pre": "they are off by",
    "blocks.0.attn.hook_out": r"first place to differ is blocks\.0\.attn: heads",
    "blocks.0.attn.hook_z": "",
}


@pytest.mark.parametrize("point", EDITS)
def test_hooks_that_break_sums_are_named(model: Forecaster, point: str) -> None:
    """Hooks that make a stream no sum of its writes are named."""
    lens = Lens(Wired(model), "own")
    with lens.hooks([(point, lambda value, hook: 1.5 * value)]):
        run = lens.run(bundled("co2").tail(40))
        if EDITS[point]:
            expect_error(
                rf"{EDITS[point]}.*Hooks are set at {point}; an edit",
                probes.attribution,
                run,
            )
        else:
            exact = probes.attribution(run, decompositions="lens_difference")[
                "completeness_error"
            ]
            assert float(exact.max()) < rounding("float32", 1.0, depth=100)


@pytest.mark.parametrize("probe", [probes.attribution, probes.logit_lens])
def test_readouts_of_other_models_are_refused(
    model: Forecaster, probe: Callable[..., Any]
) -> None:
    """A readout that is not the model's is refused."""

    class Other(Wired):
        def final_norm(self, resid: Tensor, like: Tensor | None = None) -> Tensor:
            return 1.01 * super().final_norm(resid, like)

    with pytest.raises(
        WiringError,
        match=(
            r"differs from the model's own forecast of series 'co2'.*final_norm or head"
        ),
    ):
        probe(Lens(Other(model), "another norm").run(bundled("co2").tail(40)))


def test_identity_norms_have_scale_one(model: Forecaster) -> None:
    """An identity in the place of a norm has the scale 1."""
    native = rebuilt(model, Block)
    native.set_submodule("norm", nn.Identity())
    assert failed(Wired, native) == set()
    lens = Lens(Wired(native), "no norm")
    series = bundled("co2").tail(40)
    assert float(
        probes.attribution(lens.run(series))["completeness_error"].max()
    ) < rounding("float32", 1.0, depth=100)
    activations = lens.run_with_cache(series)[1]
    scaled, plain = (
        activations.decompose_resid(apply_ln=apply) for apply in (True, False)
    )
    assert_close(scaled, plain, depth=1)
    native.set_submodule("norm", nn.Tanh())
    with pytest.raises(
        WiringError, match=r"scale cannot be frozen.*final_norm\(resid, like\)"
    ):
        probes.attribution(Lens(Wired(native), "no root mean square").run(series))


def test_stacks_without_attention_need_no_heads(model: Forecaster) -> None:
    native = rebuilt(model, AttentionFreeBlock)
    results = check_wiring(AttentionFree, native, quiet=True)
    assert all(result.passed for result in results), results
    assert [result.oracle for result in results if result.detail == "no attention"] == [
        "5 patterns",
        "10 head order",
    ]
    lens = Lens(AttentionFree(native), "mixer")
    series = bundled("co2").tail(40)
    assert probes.attribution(lens.run(series))["component"].values.tolist() == [
        "embed",
        "0.mlp",
        "1.mlp",
    ]
    for refused in (probes.head_spectra, probes.row_angles):
        expect_error("no attention", refused, lens)
    expect_error(r"blocks\.0 has no attention", probes.flow_of_ranks, lens.run(series))


@pytest.mark.parametrize(
    "name",
    [
        "timesfm-2.5-transformers",
        pytest.param("timesfm-2.5", marks=pytest.mark.exhaustive),
    ],
)
def test_norms_after_a_bias_scale_it(name: str) -> None:
    """The write of a bias behind which a norm stands adds up with those of heads."""
    lens = fresh(name)
    stack = lens.wiring.output_stack
    generator = torch.Generator().manual_seed(0)
    for layer in range(stack.n_layers):
        attention = stack.attention(None, layer)
        assert attention.post_norm
        module = lens.model.get_submodule(f"{stack.block(layer)}.{attention.o.module}")
        width = module.weight.shape[0]
        module.bias = nn.Parameter(torch.randn(width, generator=generator))
    accounting = next(oracle for oracle in ORACLES if oracle.title.startswith("3 "))
    assert accounting(example_case(lens)).passed
    names, writes = probes.component_writes(lens.run(bundled("co2").tail(64), 4))
    assert names[-1] == "bias"
    # the scale of the norm, and so the bias, differs from token to token
    assert float(writes[-1].std(dim=-2).max()) > 0.01

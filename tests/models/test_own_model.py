"""A model that the package has never heard of: wired in a few lines, checked by the oracles."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens import probes
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.models import Lens
from tsfm_lens.models.adapter import PatchAdapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.testing import ORACLES, assert_close, check_wiring, rounding

PATCH, CONTEXT, HORIZON, WIDTH, HEADS, LAYERS = 4, 64, 8, 12, 3, 2
LEVELS = (0.1, 0.5, 0.9)


class SelfAttention(nn.Module):
    """Causal, with one fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.qkv(x), "b pos (part head c) -> part b head pos c", part=3, head=HEADS)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(rearrange(z, "b head pos c -> b pos (head c)"))


class Block(nn.Module):
    """Two pre-norm branches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), SelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    """Patches in, quantiles of the next steps out, from the last token; missing values are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LEVELS) * HORIZON)

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        for block in self.blocks:
            x = block(x)
        return 10 * self.head(self.norm(x))[:, -1].unflatten(1, (len(LEVELS), HORIZON))


class Wired(PatchAdapter):
    """The right wiring."""

    architecture = "own"
    context_length, prediction_length, levels = CONTEXT, HORIZON, LEVELS

    def __init__(self, native: Forecaster) -> None:
        self.native = self.model = native
        q, k, v = (Projection("attn.qkv", "(part head d_head)", part, 3) for part in range(3))
        attention = Attention(
            "attn", "attn", Site("attn"), Site("", "in"), q, k, v, Projection("attn.out"), norm="norm1"
        )
        hidden = "batch pos d_mlp"
        mlp = Mlp(
            Site("mlp"),
            Site("norm2", "in"),
            Site("mlp.0", layout=hidden),
            Site("mlp.2", "in", layout=hidden),
            "mlp.2",
            Projection("mlp.0", "d_mlp"),
            norm="norm2",
            aside=True,
        )
        sizes = (LAYERS, HEADS, WIDTH, WIDTH // HEADS, 2 * WIDTH)
        stack = Stack("", "blocks", *sizes, (attention, mlp), ln_final="norm", upstream=("embed",))
        self.wiring = Wiring("own", (stack,), Site("head", layout="batch pos d_out"), "embed", HORIZON)

    def encode(
        self,
        batch: SeriesBatch,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
    ) -> Encoded:
        self.no_teacher(future, tokens)
        length = -(-self.longest(batch) // PATCH) * PATCH
        context = torch.full((len(batch), length), torch.nan)
        for row, series in zip(context, batch.values, strict=True):
            tail = torch.tensor(series[-length:])
            row[length - len(tail) :] = tail
        spans = {"": TokenSpans.patches(-length, length // PATCH, PATCH)}
        return Encoded({"context": context}, spans, torch.zeros(len(batch)), torch.full((len(batch),), 10.0), batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        return self.model(**inputs)


def rewired(change: Callable[[Attention], dict[str, Any]]) -> Callable[[Forecaster], Wired]:
    """The wiring with other fields in the attention row."""

    def adapt(native: Forecaster) -> Wired:
        adapter = Wired(native)
        (stack,) = adapter.wiring.stacks
        attention, mlp = stack.writers
        assert isinstance(attention, Attention)
        rows = (replace(attention, **change(attention)), mlp)
        adapter.wiring = replace(adapter.wiring, stacks=(replace(stack, writers=rows),))
        return adapter

    return adapt


@pytest.fixture(scope="module")
def model() -> Forecaster:
    """Random weights so large that every head moves the forecast."""
    torch.manual_seed(0)
    native = Forecaster()
    with torch.no_grad():
        for name, weight in native.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=weight.shape[1] ** -0.5)
            elif "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.normal_(std=0.1)
    return native.eval()


def failed(wiring: Callable[[Any], Any], model: Forecaster) -> set[int]:
    """Numbers of the oracles that reject a wiring."""
    results = check_wiring(wiring, model, quiet=True)
    assert len(results) == len(ORACLES)
    return {int(result.oracle.split()[0]) for result in results if not result.passed}


def test_the_right_wiring_passes(model: Forecaster, capsys: pytest.CaptureFixture[str]) -> None:
    assert failed(Wired, model) == set()
    printed = capsys.readouterr()
    # no terminal, and nobody asked which oracle runs
    assert printed.out == printed.err == ""


@pytest.mark.parametrize(
    ("change", "oracle"),
    [
        (lambda row: {"z_layout": "batch pos (d_head head)"}, 4),
        (lambda row: {"v": replace(row.v, layout="(head part d_head)")}, 10),
        (lambda row: {"write": Site("")}, 3),
    ],
    ids=["heads interleaved", "fused order", "write is the stream"],
)
def test_a_wrong_wiring_does_not(model: Forecaster, change: Callable[[Attention], dict[str, Any]], oracle: int) -> None:
    assert oracle in failed(rewired(change), model)


def test_a_path_that_does_not_exist_is_named(model: Forecaster) -> None:
    with pytest.raises(WiringError, match=r"blocks\.0\.attention"):
        check_wiring(rewired(lambda row: {"write": Site("attention")}), model)


def test_the_table_is_printed(model: Forecaster, capsys: pytest.CaptureFixture[str]) -> None:
    check_wiring(Wired, model)
    printed = capsys.readouterr().out
    assert "own: Forecaster" in printed
    assert printed.count("passed") == len(ORACLES)


def test_defaults_of_the_base_class(model: Forecaster) -> None:
    """The forecast is the forward, quantiles in between are interpolated, and nothing is read past one pass."""
    lens = Lens(Wired(model), "own")
    context = bundled("co2").tail(40)
    with torch.no_grad():
        emitted = model(torch.tensor(np.array(context.values), dtype=torch.float32)).double().numpy()
    np.testing.assert_array_equal(lens.forecast(context, 5, quantiles=LEVELS).quantiles, emitted[..., :5])
    between = lens.forecast(context, 5, quantiles=[0.3]).quantiles[:, 0]
    assert_close(between, emitted[:, :2, :5].mean(axis=1), depth=16, dtype=np.float32)
    with pytest.raises(InputError, match="one pass"):
        lens.forecast(context, HORIZON + 1)
    layers = probes.logit_lens(lens.run(context))
    assert_close(layers["quantile_forecast"][-1], emitted, depth=100, dtype=np.float32)


def test_a_layer_norm_before_the_head_can_be_frozen(model: Forecaster) -> None:
    """Frozen to a stream it is the norm on that stream and linear around it, so the parts add up to the forecast."""
    lens = Lens(Wired(model), "own")
    stream, other = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    frozen = [lens.adapter.final_norm(x, stream) for x in (stream, other, (stream + other) / 2)]
    assert_close(frozen[0], model.norm(stream), depth=100)
    assert_close(frozen[2], (frozen[0] + frozen[1]) / 2, depth=100)
    parts = probes.attribute(lens.run(bundled("co2").tail(40)))
    assert float(parts["completeness_error"].max()) < 1e-5


def with_fields(place: str, **fields: Any) -> Callable[[Forecaster], Wired]:
    """The wiring with other fields in one place: "attn", "mlp", "stack" or "wiring"."""

    def adapt(native: Forecaster) -> Wired:
        adapter = Wired(native)
        (stack,) = adapter.wiring.stacks
        if place == "stack":
            stack = replace(stack, **fields)
        elif place != "wiring":
            rows = tuple(replace(row, **fields) if row.kind == place else row for row in stack.writers)
            stack = replace(stack, writers=rows)
        adapter.wiring = replace(adapter.wiring, stacks=(stack,), **(fields if place == "wiring" else {}))
        return adapter

    return adapt


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
    native = Forecaster()
    native.blocks = nn.ModuleList(block() for _ in range(LAYERS))
    native.load_state_dict(model.state_dict())
    return native.eval()


class PostNorm(Wired):
    """A table of plain sums, as one would write it for a model with norms after them."""

    def __init__(self, native: Forecaster) -> None:
        super().__init__(native)
        (stack,) = self.wiring.stacks
        attention, mlp = stack.writers
        rows = (replace(attention, norm=""), replace(mlp, norm="", reads=Site("mlp", "in"), aside=False))
        self.wiring = replace(self.wiring, stacks=(replace(stack, writers=rows),))


class AttentionFree(Wired):
    """A table without heads, whose sizes are 0."""

    sizes = 0

    def __init__(self, native: Forecaster) -> None:
        super().__init__(native)
        (stack,) = self.wiring.stacks
        stack = replace(stack, writers=stack.writers[1:], n_heads=self.sizes, d_head=self.sizes)
        self.wiring = replace(self.wiring, stacks=(stack,))


SUMS: dict[str, Callable[[Lens, SeriesBatch], object]] = {
    "attribute": lambda lens, series: probes.attribute(lens.run(series)),
    "stream_shares": lambda lens, series: probes.stream_shares(lens.run(series)),
    "component_writes": lambda lens, series: probes.component_writes(lens.run(series)),
    "decompose_resid": lambda lens, series: lens.run_with_cache(series)[1].decompose_resid(),
    "into the second layer": lambda lens, series: lens.run_with_cache(series)[1].decompose_resid(layer=1),
    "full": lambda lens, series: lens.run_with_cache(series)[1].get_full_resid_decomposition(expand_neurons=False),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_stream_that_is_no_sum_of_writes_is_not_decomposed(model: Forecaster, name: str) -> None:
    lens, series = Lens(PostNorm(rebuilt(model, PostNormBlock)), "post-norm"), bundled("co2").tail(40)
    first = (
        "" if "full" in name or "layer" in name or "resid" in name else r".* first place.* blocks\.0\.hook_resid_mid"
    )
    with pytest.raises(WiringError, match=rf"wiring 'own' do not sum to the residual stream{first}.*post-norm"):
        SUMS[name](lens, series)
    # forecasts, ablations and layers claim no sum
    with lens.ablate("0.attn.1"):
        lens.forecast(series)
    probes.logit_lens(lens.run(series))


EDITS = {
    "blocks.1.hook_resid_pre": "they are off by",
    "blocks.0.attn.hook_out": r"first place to differ is blocks\.0\.attn: heads",
    "blocks.0.attn.hook_z": "",
    "blocks.1.mlp.hook_out": "",
    "hook_embed": "",
}


@pytest.mark.parametrize("point", EDITS)
def test_what_hooks_do_to_a_sum_is_said(model: Forecaster, point: str) -> None:
    lens = Lens(Wired(model), "own")
    with lens.hooks([(point, lambda value, hook: 1.5 * value)]):
        run = lens.run(bundled("co2").tail(40))
        if EDITS[point]:
            with pytest.raises(InputError, match=rf"{EDITS[point]}.*Hooks are set at {point}; an edit"):
                probes.attribute(run)
        else:
            exact = probes.attribute(run)["completeness_error"].sel(decomposition="lens_difference")
            assert float(exact.max()) < rounding("float32", 1.0, depth=100)


@pytest.mark.parametrize("probe", [probes.attribute, probes.logit_lens])
def test_a_readout_that_is_not_the_models_is_refused(model: Forecaster, probe: Callable[..., Any]) -> None:
    class Other(Wired):
        def final_norm(self, resid: Tensor, like: Tensor | None = None) -> Tensor:
            return 1.01 * super().final_norm(resid, like)

    with pytest.raises(WiringError, match=r"is off the model's own forecast of series 'co2'.*final_norm or head"):
        probe(Lens(Other(model), "another norm").run(bundled("co2").tail(40)))


def test_an_identity_in_the_place_of_a_norm_has_the_scale_1(model: Forecaster) -> None:
    native = rebuilt(model, Block)
    native.set_submodule("norm", nn.Identity())
    assert failed(Wired, native) == set()
    lens, series = Lens(Wired(native), "no norm"), bundled("co2").tail(40)
    parts = probes.attribute(lens.run(series))
    assert float(parts["completeness_error"].max()) < rounding("float32", 1.0, depth=100)
    acts = lens.run_with_cache(series)[1]
    scaled, plain = (acts.decompose_resid(apply_ln=apply) for apply in (True, False))
    assert_close(scaled, plain, depth=1)
    native.set_submodule("norm", nn.Tanh())
    with pytest.raises(WiringError, match=r"scale cannot be frozen.*final_norm\(resid, like\)"):
        probes.attribute(Lens(Wired(native), "no root mean square").run(series))


def test_a_stack_without_attention_needs_no_heads(model: Forecaster, capsys: pytest.CaptureFixture[str]) -> None:
    native = rebuilt(model, AttentionFreeBlock)
    results = check_wiring(AttentionFree, native, quiet=True, progress=True)
    assert all(result.passed for result in results), results
    said = [result.oracle for result in results if result.detail == "no attention"]
    assert said == ["5 patterns", "10 head order"]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[4] == f"oracle 5 of {len(ORACLES)}: 5 patterns"
    assert len(printed.err.splitlines()) == len(ORACLES)
    lens, series = Lens(AttentionFree(native), "mixer"), bundled("co2").tail(40)
    assert probes.attribute(lens.run(series))["component"].values.tolist() == ["embed", "0.mlp", "1.mlp"]
    for refused in (probes.head_spectra, probes.row_angles, probes.scoring_structure):
        with pytest.raises(InputError, match="no attention"):
            refused(lens)
    with pytest.raises(InputError, match=r"blocks\.0 has no attention"):
        probes.flow_of_ranks(lens.run(series))

    class Invented(AttentionFree):
        sizes = 1

    with pytest.raises(WiringError, match="n_heads=1, but no branch is an attention; expected 0"):
        Lens(Invented(native), "invented")


HIDDEN = "batch pos d_mlp"
BEFORE, AFTER = Site("mlp.0", layout=HIDDEN), Site("mlp.2", "in", layout=HIDDEN)
FUSED_QUERY = Projection("attn.qkv", "(part head d_head)", 0, 3, gain=2.0)
WRONG_FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "pre and post exchanged": ("mlp", {"pre": AFTER, "post": BEFORE}, "11 weights|12 act"),
    "gate invented": ("mlp", {"gate": Projection("mlp.0", "d_mlp")}, "12 activation"),
    "i is the output matrix": ("mlp", {"i": Projection("mlp.2", "d_mlp")}, "i: the weight of .*d_mlp=24"),
    "gain of i": ("mlp", {"i": Projection("mlp.0", "d_mlp", gain=2.0)}, "11 weights"),
    "gain of the MLP's o": ("mlp", {"o_gain": 2.0}, "11 weights"),
    "gain of q": ("attn", {"q": FUSED_QUERY}, "11 weights"),
    "gain of o": ("attn", {"o": Projection("attn.out", gain=2.0)}, "11 weights"),
    "norm of the other branch": ("attn", {"norm": "norm2"}, "11 weights"),
    "no norm": ("mlp", {"norm": ""}, "11 weights"),
    "no last norm": ("stack", {"ln_final": ""}, "13 ends"),
    "over variates": ("attn", {"over": "variate"}, "5 patterns"),
    "hidden size": ("stack", {"d_mlp": 12}, r"mlp: i: .*d_mlp=12"),
    "six heads of two": ("stack", {"n_heads": 6, "d_head": 2}, "10 head order|5 patterns"),
    "six heads of four": ("stack", {"n_heads": 6}, r"attn: q: .*n_heads=6, d_head=4"),
    "blocks left out": ("stack", {"n_layers": 1}, "n_layers=1.*holds 2"),
    "another embedding": ("wiring", {"embed": "blocks.0.attn.out"}, "13 ends"),
    "another readout": ("wiring", {"unembed": Site("blocks.1.mlp.2", layout="batch pos d_out")}, "13 ends"),
    "edits counted twice": ("attn", {"aside": True}, "6 patching"),
    "axes of the readout": ("wiring", {"unembed": Site("head", layout="pos batch d_out")}, "13 ends"),
    "features of the readout": ("wiring", {"unembed": Site("head", layout="batch d_out pos")}, "13 ends"),
    "no rows of the readout": ("wiring", {"unembed": Site("head", layout="pos d_out")}, "unembed has the layout"),
    "steps": ("wiring", {"steps_per_readout": HORIZON + 1}, "13 ends"),
}


@pytest.mark.parametrize("case", WRONG_FIELDS)
def test_a_wrong_field_is_rejected(model: Forecaster, case: str) -> None:
    place, fields, expected = WRONG_FIELDS[case]
    try:
        results = check_wiring(with_fields(place, **fields), model, quiet=True)
        said = " ".join(result.oracle for result in results if not result.passed)
    except WiringError as error:
        said = str(error)
    assert said
    assert re.search(expected, said), said


def test_a_first_branch_that_is_read_aside_carries_edits_of_the_embedding(model: Forecaster) -> None:
    wiring = with_fields("attn", reads=Site("norm1", "in"), aside=True)
    assert failed(wiring, model) == set()
    lens, series = Lens(wiring(model), "aside"), bundled("co2").tail(40)
    with torch.no_grad(), lens.hooks([("hook_embed", lambda value, hook: 2 * value)]):
        _, acts = lens.run_with_cache(series)
    with torch.no_grad(), Lens(Wired(model), "plain").hooks([("hook_embed", lambda value, hook: 2 * value)]) as plain:
        _, expected = plain.run_with_cache(series)
    for name in ("hook_embed", "blocks.0.hook_resid_mid", "blocks.1.hook_resid_post", "unembed.hook_out"):
        assert_close(acts[name], expected[name], depth=20 * WIDTH, what=name)


class PositionsFirst(Forecaster):
    """The same forecast by a head that takes positions before series."""

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        for block in self.blocks:
            x = block(x)
        return 10 * self.head(self.norm(x).transpose(0, 1))[-1].unflatten(1, (len(LEVELS), HORIZON))


def test_a_readout_with_positions_first_is_labelled_and_edited_by_series(model: Forecaster) -> None:
    native = PositionsFirst()
    native.load_state_dict(model.state_dict())
    wiring = with_fields("wiring", unembed=Site("head", layout="pos batch d_out"))
    assert failed(wiring, native.eval()) == set()
    assert 13 in failed(Wired, native)
    lens, series = Lens(wiring(native), "positions first"), [bundled("co2").tail(40).values[0], np.arange(40.0)]
    out, acts = lens.run_with_cache(series, names_filter="unembed.hook_out")
    assert acts["unembed.hook_out"].shape == (2, 10, len(LEVELS) * HORIZON)
    with lens.edit(Zero("unembed.hook_out", rows=[1])):
        edited = lens.forward(series)
    assert torch.equal(edited[0], out[0])
    assert not edited[1].any()

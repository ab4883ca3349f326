"""Models of one's own whose attention is not plain: grouped queries, and torch's own ``nn.MultiheadAttention``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.models import Lens
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.testing import assert_close, check_wiring

PATCH, CONTEXT, HORIZON, WIDTH, HEADS, SHARED, SIZE, LAYERS = 4, 64, 8, 24, 4, 2, 6, 2
LEVELS = (0.1, 0.5, 0.9)


def turned(x: Tensor) -> Tensor:
    """Rotary embedding of (batch, head, pos, d_head)."""
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class GroupedAttention(nn.Module):
    """Two query heads share a key and value head; either torch repeats it, or the module does beforehand."""

    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(WIDTH, HEADS * SIZE), *(nn.Linear(WIDTH, SHARED * SIZE) for _ in range(2))
        self.out, self.repeated = nn.Linear(HEADS * SIZE, WIDTH), repeated

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (rearrange(part(x), "b pos (head c) -> b head pos c", c=SIZE) for part in (self.q, self.k, self.v))
        q, k = turned(q), turned(k)
        if self.repeated:
            k, v = (part.repeat_interleave(HEADS // SHARED, dim=1) for part in (k, v))
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=not self.repeated)
        return self.out(rearrange(z, "b head pos c -> b pos (head c)"))


class GroupedBlock(nn.Module):
    """Two pre-norm branches, the second gated."""

    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.norm1, self.attn = nn.RMSNorm(WIDTH), GroupedAttention(repeated=repeated)
        self.norm2, self.up, self.gate = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.up(y)) * self.gate(y))


class Forecaster(nn.Module):
    """Patches in, quantiles out of the last token; ``blocks`` is a list of blocks or a stock encoder."""

    def __init__(self, blocks: nn.Module, *, pos_first: bool = False) -> None:
        super().__init__()
        self.embed, self.blocks, self.pos_first = nn.Linear(PATCH, WIDTH), blocks, pos_first
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(LEVELS) * HORIZON)

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        x = x.transpose(0, 1) if self.pos_first else x
        if isinstance(self.blocks, nn.TransformerEncoder):
            x = self.blocks(x)
        else:
            for block in self.blocks:
                x = block(x)
        x = x.transpose(0, 1) if self.pos_first else x
        return 10 * self.head(self.norm(x))[:, -1].unflatten(1, (len(LEVELS), HORIZON))


class Base(Adapter):
    """Everything but the table."""

    architecture = "own"
    context_length, prediction_length, levels = CONTEXT, HORIZON, LEVELS

    def __init__(self, native: Forecaster) -> None:
        self.native = self.model = native
        stack = replace(self.stack(), ln_final="norm", final_layout="batch pos d_model", upstream=("embed",))
        self.wiring = Wiring("own", (stack,), Site("head", layout="batch pos d_out"), "embed", HORIZON)

    def stack(self) -> Stack:
        raise NotImplementedError

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        length = -(-self.longest(batch) // PATCH) * PATCH
        context = torch.full((len(batch), length), torch.nan)
        for row, series in zip(context, batch.values, strict=True):
            tail = torch.tensor(series[-length:])
            row[length - len(tail) :] = tail
        spans = {"": TokenSpans.patches(-length, length // PATCH, PATCH)}
        return Encoded({"context": context}, spans, torch.zeros(len(batch)), torch.full((len(batch),), 10.0), batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        return self.model(**inputs)


class Grouped(Base):
    """Grouped queries: ``n_kv_heads`` is all that is said."""

    def stack(self) -> Stack:
        q, k, v, o = (Projection(f"attn.{name}") for name in ("q", "k", "v", "out"))
        stream, hidden = Site("", "in"), "batch pos d_mlp"
        attention = Attention("attn", "attn", Site("attn"), stream, q, k, v, o, norm="norm1", n_kv_heads=SHARED)
        mlp = Mlp(
            Site("down"),
            Site("norm2", "in"),
            Site("up", layout=hidden),
            Site("down", "in", layout=hidden),
            "down",
            Projection("up", "d_mlp"),
            Projection("gate", "d_mlp"),
            norm="norm2",
            aside=True,
        )
        return Stack("", "blocks", LAYERS, HEADS, WIDTH, SIZE, 32, (attention, mlp))


class Stock(Base):
    """``nn.TransformerEncoder(…, norm_first=True)``: one fused matrix in the attention, which also applies ``o``."""

    def stack(self) -> Stack:
        stream = "pos batch d_model" if self.model.pos_first else "batch pos d_model"
        hidden = stream.replace("d_model", "d_mlp")
        names = {"weight": "in_proj_weight", "bias": "in_proj_bias"}
        q, k, v = (Projection("self_attn", "(part head d_head)", part, 3, **names) for part in range(3))
        attention = Attention(
            "attn",
            "self_attn",
            Site("self_attn", layout=stream),
            Site("", "in", layout=stream),
            q,
            k,
            v,
            Projection("self_attn.out_proj"),
            z_layout=stream.replace("d_model", "(head d_head)"),
            z_inside=True,
            norm="norm1",
        )
        mlp = Mlp(
            Site("linear2", layout=stream),
            Site("norm2", "in", layout=stream),
            Site("linear1", layout=hidden),
            Site("linear2", "in", layout=hidden),
            "linear2",
            Projection("linear1", "d_mlp"),
            norm="norm2",
            aside=True,
        )
        return Stack("", "blocks.layers", LAYERS, HEADS, WIDTH, SIZE, 32, (attention, mlp))


def drawn(native: Forecaster) -> Forecaster:
    """Random weights so large that every head moves the forecast."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in native.named_parameters():
            draw = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                weight.copy_(1.5 * draw * weight.shape[1] ** -0.5)
            else:
                weight.copy_(1 + 0.2 * draw if "norm" in name and "weight" in name else 0.1 * draw)
    return native.eval()


def grouped(*, repeated: bool) -> Forecaster:
    return drawn(Forecaster(nn.ModuleList(GroupedBlock(repeated=repeated) for _ in range(LAYERS))))


def stock(*, batch_first: bool) -> Forecaster:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, 0.1, "gelu", batch_first=batch_first, norm_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return drawn(Forecaster(encoder, pos_first=not batch_first))


MODELS: dict[str, tuple[type[Base], Callable[[], Forecaster]]] = {
    "grouped": (Grouped, lambda: grouped(repeated=False)),
    "grouped, repeated before": (Grouped, lambda: grouped(repeated=True)),
    "stock, batch first": (Stock, lambda: stock(batch_first=True)),
    "stock, positions first": (Stock, lambda: stock(batch_first=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_oracle_holds(name: str) -> None:
    wiring, model = MODELS[name]
    results = check_wiring(wiring, model(), quiet=True)
    assert all(result.passed for result in results), [result for result in results if not result.passed]


def test_the_stock_encoder_was_on_its_fast_path_before_it_was_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The idle lens leaves torch's fast path on, and the first hook ends it."""
    model, calls = stock(batch_first=True), []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fast(*args))
    lens = Lens(Stock(model), "stock")
    lens.forecast(bundled("co2").tail(40), 4)
    assert len(calls) == LAYERS
    with lens.ablate("0.attn.1"):
        lens.forecast(bundled("co2").tail(40), 4)
    assert len(calls) == LAYERS


@pytest.mark.parametrize("name", MODELS)
def test_keys_and_values_have_the_shared_heads_once_and_weights_one_for_every_head(name: str) -> None:
    """As TransformerLens has them: hooks un-repeated, W_K and W_V repeated."""
    wiring, model = MODELS[name]
    native = model()
    lens = Lens(wiring(native), name)
    shared = SHARED if wiring is Grouped else HEADS
    _, acts = lens.run_with_cache(bundled("co2").tail(40))
    for letter, heads in (("q", HEADS), ("k", shared), ("v", shared), ("z", HEADS)):
        assert acts[f"blocks.0.attn.hook_{letter}"].shape[1:] == (10, heads, SIZE)
    weights = lens.weights.heads(1)
    assert weights.W_K.shape == weights.W_V.shape == weights.W_Q.shape == (HEADS, WIDTH, SIZE)
    if wiring is Grouped:
        rows = native.blocks[1].attn.k.weight
        for head in range(HEADS):
            group = head // (HEADS // SHARED)
            assert torch.equal(weights.W_K[head], rows[group * SIZE : (group + 1) * SIZE].T)


@pytest.mark.parametrize("repeated", [False, True])
def test_an_edit_of_a_shared_key_moves_the_heads_that_share_it(repeated: bool) -> None:
    lens = Lens(Grouped(grouped(repeated=repeated)), "grouped")
    series = bundled("co2").tail(40)

    def without(value: Tensor, hook: object) -> Tensor:
        value[:, :, 1] = 0.0
        return value

    _, plain = lens.run_with_cache(series, names_filter="blocks.0.attn.hook_z")
    with lens.hooks([("blocks.0.attn.hook_v", without)]):
        _, acts = lens.run_with_cache(series, names_filter="blocks.0.attn.hook_z")
    z, before = acts["blocks.0.attn.hook_z"], plain["blocks.0.attn.hook_z"]
    assert_close(z[:, :, :2], before[:, :, :2], depth=SIZE, what="heads of the other group")
    assert float(z[:, :, 2:].abs().max()) == 0.0


def changed(wiring: type[Base], kind: str, **fields: Any) -> Callable[[Forecaster], Base]:
    """The wiring with other fields in one row."""

    def adapt(native: Forecaster) -> Base:
        adapter = wiring(native)
        (stack,) = adapter.wiring.stacks
        rows = tuple(replace(row, **fields) if row.kind == kind else row for row in stack.writers)
        adapter.wiring = replace(adapter.wiring, stacks=(replace(stack, writers=rows),))
        return adapter

    return adapt


FUSED = {"parts": 3, "weight": "in_proj_weight", "bias": "in_proj_bias"}
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no shared heads": ("grouped", {"n_kv_heads": 0}, "attn: k: the weight of 'blocks.0.attn.k'.*n_heads=4"),
    "three shared heads": ("grouped", {"n_kv_heads": 3}, "n_kv_heads=3.*divide n_heads=4"),
    "four shared heads": ("grouped, repeated before", {"n_kv_heads": 4}, "n_heads=4"),
    "keys and values exchanged": ("grouped", {"k": Projection("attn.v"), "v": Projection("attn.k")}, "10 head order"),
    "shared heads interleaved": ("grouped", {"k": Projection("attn.k", "(d_head head)")}, "10 head order"),
    "z on the way into o": ("stock, batch first", {"z_inside": False}, "."),
    "parts exchanged": (
        "stock, batch first",
        {"q": Projection("self_attn", "(part head d_head)", 1, **FUSED)},
        "10 head order",
    ),
    "heads first": (
        "stock, batch first",
        {"v": Projection("self_attn", "(head part d_head)", 2, **FUSED)},
        "10 head order",
    ),
    "batch for positions": ("stock, positions first", {"z_layout": "batch pos (head d_head)"}, "."),
    "no such matrix": ("stock, batch first", {"q": Projection("self_attn")}, "no weight matrix.*in_proj_weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_rejected(case: str) -> None:
    name, fields, expected = WRONG[case]
    wiring, model = MODELS[name]
    try:
        results = check_wiring(changed(wiring, "attn", **fields), model(), quiet=True)
        said = " ".join(result.oracle for result in results if not result.passed)
    except WiringError as error:
        said = str(error)
    assert said
    assert re.search(expected, said), said


UP, GATE = Projection("up", "d_mlp"), Projection("gate", "d_mlp")
WRONG_GATES: dict[str, tuple[dict[str, Any], str]] = {
    "pre is the gate": ({"pre": Site("gate", layout="batch pos d_mlp")}, "11 weights"),
    "gate and input exchanged": ({"i": GATE, "gate": UP}, "11 weights"),
    "gate, input and pre exchanged": (
        {"i": GATE, "gate": UP, "pre": Site("gate", layout="batch pos d_mlp")},
        "12 activation",
    ),
    "gate forgotten": ({"gate": None}, "12 activation"),
    "gate for input": ({"i": GATE}, "11 weights"),
}


@pytest.mark.parametrize("case", WRONG_GATES)
def test_a_wrong_gate_is_rejected(case: str) -> None:
    fields, expected = WRONG_GATES[case]
    results = check_wiring(changed(Grouped, "mlp", **fields), grouped(repeated=False), quiet=True)
    assert expected in [result.oracle.removesuffix(" function") for result in results if not result.passed]


def test_attention_that_is_asked_for_its_weights_is_refused_by_name() -> None:
    model = stock(batch_first=True)
    lens = Lens(Stock(model), "stock")
    attention = model.blocks.layers[0].self_attn
    right = attention.forward
    attention.forward = lambda *args, **kwargs: right(*args, **{**kwargs, "need_weights": True})
    with pytest.raises(WiringError, match=r"self_attn.*need_weights=True.*need_weights=False"), lens.ablate("0.attn.1"):
        lens.forecast(bundled("co2").tail(40), 4)

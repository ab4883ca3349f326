"""Models of one's own whose attention is not plain: grouped queries, and torch's own
``nn.MultiheadAttention``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from homemade_model import (
    Forecaster,
    Wired,
    assert_rejected,
    drawn,
    failed,
    with_fields,
)
from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import bundled
from tsfm_lens.hooks.wiring import Projection, Site, Stack
from tsfm_lens.models import Lens
from tsfm_lens.models.wirings._common import attention_row, fused, mlp_row, projections
from tsfm_lens.testing import assert_close

WIDTH = 24
HEADS = 4
SHARED = 2
SIZE = 6
LAYERS = 2
UP = Projection("up", "d_mlp")
GATE = Projection("gate", "d_mlp")
IN_PROJ = {"weight": "in_proj_weight", "bias": "in_proj_bias"}


def turned(x: Tensor) -> Tensor:
    """Rotary embedding of (batch, head, pos, d_head)."""
    angle = torch.arange(x.shape[-2])[:, None] * 0.3 ** torch.arange(x.shape[-1] // 2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat(
        [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1
    )


class GroupedAttention(nn.Module):
    """Two query heads share a key and value head; either torch repeats it, or the
    module does beforehand.
    """

    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (
            nn.Linear(WIDTH, HEADS * SIZE),
            *(nn.Linear(WIDTH, SHARED * SIZE) for _ in range(2)),
        )
        self.out = nn.Linear(HEADS * SIZE, WIDTH)
        self.repeated = repeated

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            rearrange(part(x), "b pos (head c) -> b head pos c", c=SIZE)
            for part in (self.q, self.k, self.v)
        )
        q = turned(q)
        k = turned(k)
        if self.repeated:
            k, v = (part.repeat_interleave(HEADS // SHARED, dim=1) for part in (k, v))
        z = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=not self.repeated
        )
        return self.out(rearrange(z, "b head pos c -> b pos (head c)"))


class GroupedBlock(nn.Module):
    """Two pre-norm branches, the second gated."""

    def __init__(self, *, repeated: bool) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(WIDTH)
        self.attn = GroupedAttention(repeated=repeated)
        self.norm2 = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 32)
        self.gate = nn.Linear(WIDTH, 32)
        self.down = nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.up(y)) * self.gate(y))


class Grouped(Wired):
    """Grouped queries: ``n_kv_heads`` is all that is said."""

    def stack(self) -> Stack:
        matrices = projections("attn.{}", "q k v out")
        attention = attention_row(
            "attn", "attn", matrices, norm="norm1", n_kv_heads=SHARED
        )
        mlp = mlp_row(
            "down", "norm2", ("up", "down"), "", gate=GATE, norm="norm2", aside=True
        )
        return Stack("", "blocks", LAYERS, HEADS, WIDTH, SIZE, 32, (attention, mlp))


class Stock(Wired):
    """``nn.TransformerEncoder(…, norm_first=True)``: one fused matrix in the attention,
    which also applies ``o``.
    """

    def stack(self) -> Stack:
        stream = "batch pos d_model"
        if self.model.pos_first:
            stream = "pos batch d_model"
        z_layout = stream.replace("d_model", "(head d_head)")
        out = Projection("self_attn.out_proj")
        matrices = fused("self_attn", "(part head d_head)", out, **IN_PROJ)
        attention = attention_row(
            "attn",
            "self_attn",
            matrices,
            stream=stream,
            z_layout=z_layout,
            z_inside=True,
            norm="norm1",
        )
        mlp = mlp_row(
            "linear2",
            "norm2",
            ("linear1", "linear2"),
            "",
            stream=stream,
            norm="norm2",
            aside=True,
        )
        return Stack(
            "", "blocks.layers", LAYERS, HEADS, WIDTH, SIZE, 32, (attention, mlp)
        )


def grouped(*, repeated: bool) -> Forecaster:
    blocks = nn.ModuleList(GroupedBlock(repeated=repeated) for _ in range(LAYERS))
    return drawn(Forecaster(blocks, width=WIDTH), 1.5)


def stock(*, batch_first: bool) -> Forecaster:
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 32, 0.1, "gelu", batch_first=batch_first, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    return drawn(Forecaster(encoder, width=WIDTH, pos_first=not batch_first), 1.5)


MODELS: dict[str, tuple[type[Wired], Callable[[], Forecaster]]] = {
    "grouped": (Grouped, lambda: grouped(repeated=False)),
    "grouped, repeated before": (Grouped, lambda: grouped(repeated=True)),
    "stock, batch first": (Stock, lambda: stock(batch_first=True)),
    "stock, positions first": (Stock, lambda: stock(batch_first=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_oracle_holds(name: str) -> None:
    wiring, model = MODELS[name]
    assert failed(wiring, model()) == set()


def test_hooks_end_torch_s_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The idle lens leaves torch's fast path on, and the first hook ends it."""
    model = stock(batch_first=True)
    calls = []
    fast = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch,
        "_transformer_encoder_layer_fwd",
        lambda *args: calls.append(1) or fast(*args),
    )
    lens = Lens(Stock(model), "stock")
    lens.forecast(bundled("co2").tail(40), 4)
    assert len(calls) == LAYERS
    with lens.ablate("0.attn.1"):
        lens.forecast(bundled("co2").tail(40), 4)
    assert len(calls) == LAYERS


@pytest.mark.parametrize("repeated", [False, True])
def test_shared_key_edits_move_sharing_heads(repeated: bool) -> None:
    """An edit of a shared key moves the heads that share it."""
    lens = Lens(Grouped(grouped(repeated=repeated)), "grouped")
    series = bundled("co2").tail(40)

    def without(value: Tensor, hook: object) -> Tensor:
        value[:, :, 1] = 0.0
        return value

    _, plain = lens.run_with_cache(series, names_filter="blocks.0.attn.hook_z")
    with lens.hooks([("blocks.0.attn.hook_v", without)]):
        _, activations = lens.run_with_cache(
            series, names_filter="blocks.0.attn.hook_z"
        )
    z = activations["blocks.0.attn.hook_z"]
    before = plain["blocks.0.attn.hook_z"]
    assert_close(
        z[:, :, :2], before[:, :, :2], depth=SIZE, what="heads of the other group"
    )
    assert float(z[:, :, 2:].abs().max()) == 0.0


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "three shared heads": (
        "grouped",
        {"n_kv_heads": 3},
        "n_kv_heads=3.*divide n_heads=4",
    ),
    "keys and values exchanged": (
        "grouped",
        {"k": Projection("attn.v"), "v": Projection("attn.k")},
        "10 head order",
    ),
    "z on the way into o": ("stock, batch first", {"z_inside": False}, "."),
    "no such matrix": (
        "stock, batch first",
        {"q": Projection("self_attn")},
        "no weight matrix.*in_proj_weight",
    ),
}


GATED = Site("gate", layout="batch pos d_mlp")
WRONG_GATES: dict[str, tuple[dict[str, Any], str]] = {
    "gate, input and pre exchanged": (
        {"i": GATE, "gate": UP, "pre": GATED},
        "12 activation",
    ),
    "gate forgotten": ({"gate": None}, "12 activation"),
}
TABLES = [(name, "attn", fields, message) for name, fields, message in WRONG.values()]
TABLES += [
    ("grouped", "mlp", fields, message) for fields, message in WRONG_GATES.values()
]


@pytest.mark.parametrize(
    ("name", "row", "fields", "message"), TABLES, ids=[*WRONG, *WRONG_GATES]
)
def test_a_wrong_table_is_rejected(
    name: str, row: str, fields: dict[str, Any], message: str
) -> None:
    wiring, model = MODELS[name]
    assert_rejected(with_fields(wiring, row, **fields), model(), message)


def test_attention_asked_for_weights_is_refused() -> None:
    """Attention that is asked for its weights is refused by name."""
    model = stock(batch_first=True)
    lens = Lens(Stock(model), "stock")
    attention = model.blocks.layers[0].self_attn
    right = attention.forward
    attention.forward = lambda *args, **kwargs: right(
        *args, **{**kwargs, "need_weights": True}
    )
    with (
        pytest.raises(
            WiringError, match=r"self_attn.*need_weights=True.*need_weights=False"
        ),
        lens.ablate("0.attn.1"),
    ):
        lens.forecast(bundled("co2").tail(40), 4)

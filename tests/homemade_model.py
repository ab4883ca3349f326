"""A small forecaster that the package does not know, its weights and its wiring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.core.errors import WiringError
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Projection, Site, Stack, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.wirings._common import attention_row, fused, mlp_row
from tsfm_lens.testing import ORACLES, check_wiring

PATCH = 4
CONTEXT = 64
HORIZON = 8
WIDTH = 12
HEADS = 3
LAYERS = 2
LEVELS = (0.1, 0.5, 0.9)


class SelfAttention(nn.Module):
    """Causal, with one fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(
            self.qkv(x), "b pos (part head c) -> part b head pos c", part=3, head=HEADS
        )
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(rearrange(z, "b head pos c -> b pos (head c)"))


class Block(nn.Module):
    """Two pre-norm branches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = SelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    """Patches in, quantiles of the next steps out, from the last token; missing values
    are 0.
    """

    def __init__(
        self,
        blocks: nn.Module | None = None,
        *,
        width: int = WIDTH,
        pos_first: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, width)
        self.pos_first = pos_first
        self.blocks = (
            nn.ModuleList(Block() for _ in range(LAYERS)) if blocks is None else blocks
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(LEVELS) * HORIZON)

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        if self.pos_first:
            x = x.transpose(0, 1)
        for block in (
            self.blocks if isinstance(self.blocks, nn.ModuleList) else [self.blocks]
        ):
            x = block(x)
        if self.pos_first:
            x = x.transpose(0, 1)
        return 10 * self.head(self.norm(x))[:, -1].unflatten(1, (len(LEVELS), HORIZON))


class Wired(Adapter):
    """The right wiring."""

    architecture = "homemade"
    context_length = CONTEXT
    prediction_length = HORIZON
    levels = LEVELS

    def __init__(self, native: Forecaster) -> None:
        self.native = self.model = native
        stack = replace(
            self.stack(),
            ln_final="norm",
            final_layout="batch pos d_model",
            upstream=("embed",),
        )
        self.wiring = Wiring(
            "homemade",
            (stack,),
            Site("head", layout="batch pos d_out"),
            "embed",
            HORIZON,
        )

    def stack(self) -> Stack:
        """The table of the blocks."""
        matrices = fused("attn.qkv", "(part head d_head)", Projection("attn.out"))
        attention = attention_row("attn", "attn", matrices, norm="norm1")
        mlp = mlp_row("mlp", "norm2", ("mlp.0", "mlp.2"), "", norm="norm2", aside=True)
        return Stack(
            "",
            "blocks",
            LAYERS,
            HEADS,
            WIDTH,
            WIDTH // HEADS,
            2 * WIDTH,
            (attention, mlp),
        )

    def encode(self, batch: SeriesBatch, horizon: int | None = None) -> Encoded:
        length = -(-self.longest(batch) // PATCH) * PATCH
        context = torch.full((len(batch), length), torch.nan)
        for row, series in zip(context, batch.values, strict=True):
            tail = torch.tensor(series[-length:])
            row[length - len(tail) :] = tail
        spans = {"": TokenSpans.patches(-length, length // PATCH, PATCH)}
        return Encoded(
            {"context": context},
            spans,
            torch.zeros(len(batch)),
            torch.full((len(batch),), 10.0),
            batch,
        )

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        return self.model(**inputs)


def with_fields(
    wiring: type[Wired], part: str, **fields: Any
) -> Callable[[Forecaster], Wired]:
    """The wiring with other fields in one place: "attn", "mlp", "stack" or "wiring"."""

    def adapt(native: Forecaster) -> Wired:
        adapter = wiring(native)
        (stack,) = adapter.wiring.stacks
        if part == "stack":
            stack = replace(stack, **fields)
        elif part != "wiring":
            rows = tuple(
                replace(row, **fields) if row.kind == part else row
                for row in stack.writers
            )
            stack = replace(stack, writers=rows)
        adapter.wiring = replace(
            adapter.wiring, stacks=(stack,), **(fields if part == "wiring" else {})
        )
        return adapter

    return adapt


def drawn(native: Forecaster | None = None, gain: float = 1.0) -> Forecaster:
    """Random weights so large that every head moves the forecast."""
    torch.manual_seed(0)
    if native is None:
        native = Forecaster()
    with torch.no_grad():
        for name, weight in native.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=gain * weight.shape[1] ** -0.5)
            elif "norm" in name:
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.normal_(std=0.1)
    return native.eval()


def tiny() -> Forecaster:
    """The model of the suites, where the wiring is registered."""
    return drawn()


def failed(wiring: Callable[[Any], Any], model: Forecaster) -> set[int]:
    """Numbers of the oracles that reject a wiring."""
    results = check_wiring(wiring, model, quiet=True)
    assert len(results) == len(ORACLES)
    return {int(result.oracle.split()[0]) for result in results if not result.passed}


def assert_rejected(
    wiring: Callable[[Any], Any], model: Forecaster, expected: str
) -> None:
    """By an oracle, or as it is opened, in words that match."""
    try:
        messages = " ".join(
            result.oracle
            for result in check_wiring(wiring, model, quiet=True)
            if not result.passed
        )
    except WiringError as error:
        messages = str(error)
    assert messages
    assert re.search(expected, messages), messages

"""Wiring of forecasters of time steps, whatever their scoring functions.

Read :class:`StepAdapter`; importing the module is what lets ``load(model)`` open a
:class:`~tsfm_lens.studies.structured.models.StepForecaster`.
"""

from __future__ import annotations

from typing import cast

from tsfm_lens.core.extensions import add_method
from tsfm_lens.hooks import Attention, Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.studies.samformer.models import RevIN
from tsfm_lens.studies.samformer.wiring import ChannelAdapter
from tsfm_lens.studies.structured.models import EncoderBlock, StepForecaster

__all__ = ["StepAdapter"]


class StepAdapter(ChannelAdapter):
    """Lens adapter of a :class:`StepForecaster`.

    Its tokens are time steps, each with all channels.
    """

    architecture = "structured-steps"
    model: StepForecaster

    def __init__(self, native: StepForecaster) -> None:
        self.native = self.model = native
        self.context_length = native.length
        self.prediction_length = native.horizon
        self.n_variates = native.channels
        self.over_time = True
        unembed = Site("read_out", layout="batch pos d_out")
        self.wiring = Wiring(
            self.architecture,
            (describe_stack(native),),
            unembed,
            "embed",
            native.horizon,
        )

    @property
    def revin(self) -> RevIN:
        return self.model.revin


def describe_stack(model: StepForecaster) -> Stack:
    """Return the rows of a model's blocks.

    Layers with other numbers of scoring features have rows of their own.
    """
    blocks = cast("list[EncoderBlock]", list(model.encoder.blocks))
    first = blocks[0].attn
    rows = [(_attention(block), _mlp()) for block in blocks]
    return Stack(
        "",
        "encoder.blocks",
        len(blocks),
        first.n_heads,
        first.width,
        first.d_head,
        blocks[0].up.out_features,
        rows[0],
        ln_final="encoder.norm",
        final_layout="batch pos d_model",
        upstream=("embed",),
        exceptions={layer: row for layer, row in enumerate(rows) if row != rows[0]},
    )


def _attention(block: EncoderBlock) -> Attention:
    q, k, v, o = (Projection(f"attn.{name}") for name in "qkvo")
    own_size = block.attn.d_score != block.attn.d_head
    return Attention(
        "attn",
        "attn",
        Site("attn"),
        Site("", "in"),
        q,
        k,
        v,
        o,
        norm="norm1",
        d_score=block.attn.d_score if own_size else 0,
    )


def _mlp() -> Mlp:
    hidden = "batch pos d_mlp"
    pre = Site("up", layout=hidden)
    post = Site("down", "in", layout=hidden)
    inner = Projection("up", "d_mlp")
    return Mlp(
        Site("down"),
        Site("norm2", "in"),
        pre,
        post,
        "down",
        inner,
        norm="norm2",
        aside=True,
        act="gelu",
    )


@add_method("StepForecaster")
def lens_adapter(model: StepForecaster) -> StepAdapter:
    """Return the model's own wiring, by which ``load(model)`` opens it."""
    return StepAdapter(model)

"""A model that the package has never heard of: wired in a few lines, checked by the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from homemade_model import (
    HORIZON,
    LEVELS,
    PATCH,
    WIDTH,
    Forecaster,
    Wired,
    assert_rejected,
    failed,
    with_fields,
)
from refusals import expect_error
from tsfm_lens import probes
from tsfm_lens.data import bundled
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.wiring import Projection, Site
from tsfm_lens.models import Lens
from tsfm_lens.testing import ORACLES, assert_close, check_wiring


def test_the_right_wiring_passes_and_the_table_is_printed(
    model: Forecaster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed(Wired, model) == set()
    printed = capsys.readouterr()
    # no terminal, and nobody asked which oracle runs
    assert printed.out == printed.err == ""
    check_wiring(Wired, model)
    table = capsys.readouterr().out
    assert "Forecaster" in table
    assert table.count("passed") == len(ORACLES)


def test_defaults_of_the_base_class(model: Forecaster) -> None:
    """The forecast is the forward, quantiles in between are interpolated, and nothing is read past one pass."""
    lens = Lens(Wired(model), "own")
    context = bundled("co2").tail(40)
    with torch.no_grad():
        emitted = (
            model(torch.tensor(np.array(context.values), dtype=torch.float32))
            .double()
            .numpy()
        )
    np.testing.assert_array_equal(
        lens.forecast(context, 5, quantiles=LEVELS).quantiles, emitted[..., :5]
    )
    between = lens.forecast(context, 5, quantiles=[0.3]).quantiles[:, 0]
    assert_close(between, emitted[:, :2, :5].mean(axis=1), depth=16, dtype=np.float32)
    expect_error("one pass", lens.forecast, context, HORIZON + 1)
    assert_close(
        probes.logit_lens(lens.run(context))["quantile_forecast"][-1],
        emitted,
        depth=100,
        dtype=np.float32,
    )


def test_a_layer_norm_before_the_head_can_be_frozen(model: Forecaster) -> None:
    """Frozen to a stream it is the norm on that stream and linear around it, so the parts add up to the forecast."""
    lens = Lens(Wired(model), "own")
    stream, other = torch.randn(2, 5, WIDTH), torch.randn(2, 5, WIDTH)
    frozen = [
        lens.adapter.final_norm(x, stream)
        for x in (stream, other, (stream + other) / 2)
    ]
    assert_close(frozen[0], model.norm(stream), depth=100)
    assert_close(frozen[2], (frozen[0] + frozen[1]) / 2, depth=100)
    assert (
        float(
            probes.attribution(lens.run(bundled("co2").tail(40)))[
                "completeness_error"
            ].max()
        )
        < 1e-5
    )


HIDDEN = "batch pos d_mlp"
BEFORE, AFTER = Site("mlp.0", layout=HIDDEN), Site("mlp.2", "in", layout=HIDDEN)
FUSED_QUERY = Projection("attn.qkv", "(part head d_head)", 0, 3, gain=2.0)
WRONG_FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads interleaved": (
        "attn",
        {"z_layout": "batch pos (d_head head)"},
        "4 zero-ablation",
    ),
    "fused order": (
        "attn",
        {"v": Projection("attn.qkv", "(head part d_head)", 2, 3)},
        "10 head order",
    ),
    "write is the stream": ("attn", {"write": Site("")}, "3 accounting"),
    "no such path": ("attn", {"write": Site("attention")}, r"blocks\.0\.attention"),
    "pre and post exchanged": (
        "mlp",
        {"pre": AFTER, "post": BEFORE},
        "11 weights|12 act",
    ),
    "gate invented": ("mlp", {"gate": Projection("mlp.0", "d_mlp")}, "12 activation"),
    "i is the output matrix": (
        "mlp",
        {"i": Projection("mlp.2", "d_mlp")},
        "i: the weight of .*d_mlp=24",
    ),
    "gain of i": ("mlp", {"i": Projection("mlp.0", "d_mlp", gain=2.0)}, "11 weights"),
    "gain of the MLP's o": ("mlp", {"o_gain": 2.0}, "11 weights"),
    "gain of q": ("attn", {"q": FUSED_QUERY}, "11 weights"),
    "gain of o": ("attn", {"o": Projection("attn.out", gain=2.0)}, "11 weights"),
    "norm of the other branch": ("attn", {"norm": "norm2"}, "11 weights"),
    "no norm": ("mlp", {"norm": ""}, "11 weights"),
    "no last norm": ("stack", {"ln_final": ""}, "13 ends"),
    "over variates": ("attn", {"over": "variate"}, "5 patterns"),
    "hidden size": ("stack", {"d_mlp": 12}, r"mlp: i: .*d_mlp=12"),
    "six heads of two": (
        "stack",
        {"n_heads": 6, "d_head": 2},
        "10 head order|5 patterns",
    ),
    "six heads of four": ("stack", {"n_heads": 6}, r"attn: q: .*n_heads=6, d_head=4"),
    "blocks left out": ("stack", {"n_layers": 1}, "n_layers=1.*holds 2"),
    "another embedding": ("wiring", {"embed": "blocks.0.attn.out"}, "13 ends"),
    "another readout": (
        "wiring",
        {"unembed": Site("blocks.1.mlp.2", layout="batch pos d_out")},
        "13 ends",
    ),
    "edits counted twice": ("attn", {"aside": True}, "6 patching"),
    "axes of the readout": (
        "wiring",
        {"unembed": Site("head", layout="pos batch d_out")},
        "13 ends",
    ),
    "features of the readout": (
        "wiring",
        {"unembed": Site("head", layout="batch d_out pos")},
        "13 ends",
    ),
    "no rows of the readout": (
        "wiring",
        {"unembed": Site("head", layout="pos d_out")},
        "unembed has the layout",
    ),
    "steps": ("wiring", {"steps_per_readout": HORIZON + 1}, "13 ends"),
}


@pytest.mark.parametrize(
    ("place", "fields", "said"), WRONG_FIELDS.values(), ids=WRONG_FIELDS
)
def test_a_wrong_field_is_rejected(
    model: Forecaster, place: str, fields: dict[str, Any], said: str
) -> None:
    assert_rejected(with_fields(Wired, place, **fields), model, said)


def test_a_first_branch_that_is_read_aside_carries_edits_of_the_embedding(
    model: Forecaster,
) -> None:
    wiring = with_fields(Wired, "attn", reads=Site("norm1", "in"), aside=True)
    assert failed(wiring, model) == set()
    lens, series = Lens(wiring(model), "aside"), bundled("co2").tail(40)
    with torch.no_grad(), lens.hooks([("hook_embed", lambda value, hook: 2 * value)]):
        _, acts = lens.run_with_cache(series)
    with (
        torch.no_grad(),
        Lens(Wired(model), "plain").hooks(
            [("hook_embed", lambda value, hook: 2 * value)]
        ) as plain,
    ):
        _, expected = plain.run_with_cache(series)
    for name in (
        "hook_embed",
        "blocks.0.hook_resid_mid",
        "blocks.1.hook_resid_post",
        "unembed.hook_out",
    ):
        assert_close(acts[name], expected[name], depth=20 * WIDTH, what=name)


class PositionsFirst(Forecaster):
    """The same forecast by a head that takes positions before series."""

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        for block in self.blocks:
            x = block(x)
        return 10 * self.head(self.norm(x).transpose(0, 1))[-1].unflatten(
            1, (len(LEVELS), HORIZON)
        )


def test_a_readout_with_positions_first_is_labelled_and_edited_by_series(
    model: Forecaster,
) -> None:
    native = PositionsFirst()
    native.load_state_dict(model.state_dict())
    wiring = with_fields(
        Wired, "wiring", unembed=Site("head", layout="pos batch d_out")
    )
    assert failed(wiring, native.eval()) == set()
    assert 13 in failed(Wired, native)
    lens, series = (
        Lens(wiring(native), "positions first"),
        [bundled("co2").tail(40).values[0], np.arange(40.0)],
    )
    out, acts = lens.run_with_cache(series, names_filter="unembed.hook_out")
    assert acts["unembed.hook_out"].shape == (2, 10, len(LEVELS) * HORIZON)
    with lens.edit(Zero("unembed.hook_out", rows=[1])):
        edited = lens.forward(series)
    assert torch.equal(edited[0], out[0])
    assert not edited[1].any()

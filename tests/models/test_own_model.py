"""A model that the package has never heard of: wired in a few lines, checked by the
oracles.
"""

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


def test_the_right_wiring_passes(
    model: Forecaster, capsys: pytest.CaptureFixture[str]
) -> None:
    """The right wiring passes, and the table is printed."""
    assert failed(Wired, model) == set()
    printed = capsys.readouterr()
    # no terminal, and nobody asked which oracle runs
    assert printed.out == printed.err == ""
    check_wiring(Wired, model)
    table = capsys.readouterr().out
    assert "Forecaster" in table
    assert table.count("passed") == len(ORACLES)


def test_defaults_of_the_base_class(model: Forecaster) -> None:
    """The forecast is the forward, quantiles in between are interpolated, and nothing
    is read past one pass.
    """
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


HIDDEN = "batch pos d_mlp"
BEFORE = Site("mlp.0", layout=HIDDEN)
AFTER = Site("mlp.2", "in", layout=HIDDEN)
WRONG_FIELDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "heads interleaved": (
        "attn",
        {"z_layout": "batch pos (d_head head)"},
        "4 zero-ablation",
    ),
    "write is the stream": ("attn", {"write": Site("")}, "3 accounting"),
    "no such path": ("attn", {"write": Site("attention")}, r"blocks\.0\.attention"),
    "i is the output matrix": (
        "mlp",
        {"i": Projection("mlp.2", "d_mlp")},
        "i: the weight of .*d_mlp=24",
    ),
    "gain of o": ("attn", {"o": Projection("attn.out", gain=2.0)}, "11 weights"),
    "no norm": ("mlp", {"norm": ""}, "11 weights"),
    "six heads of two": (
        "stack",
        {"n_heads": 6, "d_head": 2},
        "10 head order|5 patterns",
    ),
    "blocks left out": ("stack", {"n_layers": 1}, "n_layers=1.*holds 2"),
    "another readout": (
        "wiring",
        {"unembed": Site("blocks.1.mlp.2", layout="batch pos d_out")},
        "13 ends",
    ),
    "edits counted twice": ("attn", {"aside": True}, "6 patching"),
    "no rows of the readout": (
        "wiring",
        {"unembed": Site("head", layout="pos d_out")},
        "unembed has the layout",
    ),
}


@pytest.mark.parametrize(
    ("row", "fields", "message"), WRONG_FIELDS.values(), ids=WRONG_FIELDS
)
def test_a_wrong_field_is_rejected(
    model: Forecaster, row: str, fields: dict[str, Any], message: str
) -> None:
    assert_rejected(with_fields(Wired, row, **fields), model, message)


class PositionsFirst(Forecaster):
    """The same forecast by a head that takes positions before series."""

    def forward(self, context: Tensor) -> Tensor:
        x = self.embed(torch.nan_to_num(context / 10).unflatten(1, (-1, PATCH)))
        for block in self.blocks:
            x = block(x)
        return 10 * self.head(self.norm(x).transpose(0, 1))[-1].unflatten(
            1, (len(LEVELS), HORIZON)
        )


def test_readouts_may_put_positions_first(
    model: Forecaster,
) -> None:
    """A readout with positions first is labelled and edited by series."""
    native = PositionsFirst()
    native.load_state_dict(model.state_dict())
    wiring = with_fields(
        Wired, "wiring", unembed=Site("head", layout="pos batch d_out")
    )
    assert failed(wiring, native.eval()) == set()
    assert 13 in failed(Wired, native)
    lens = Lens(wiring(native), "positions first")
    series = [bundled("co2").tail(40).values[0], np.arange(40.0)]
    out, activations = lens.run_with_cache(series, names_filter="unembed.hook_out")
    assert activations["unembed.hook_out"].shape == (2, 10, len(LEVELS) * HORIZON)
    with lens.edit(Zero("unembed.hook_out", rows=[1])):
        edited = lens.forward(series)
    assert torch.equal(edited[0], out[0])
    assert not edited[1].any()

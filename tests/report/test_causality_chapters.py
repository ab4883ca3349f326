"""Sections on interventions: readings of planted truths, tables with the numbers of their figures."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens.errors import InputError
from tsfm_lens.probes.findings import judge
from tsfm_lens.report.build import measurement_of
from tsfm_lens.viz.circuits import read_circuit, read_circuit_forecasts, read_curve
from tsfm_lens.viz.effects import read_effects, read_paths, read_self_repair
from tsfm_lens.viz.patching import read_attribution_patching, read_estimate, read_patched_forecasts, read_patching

KINDS = ("patching", "attribution_patching", "paths", "edges", "effects", "circuit")


@pytest.mark.parametrize("name", KINDS)
def test_every_plate_has_a_title_rows_and_sentences(name, results, counts):
    ds = results[name]
    panels = list(measurement_of(ds, name).draw_panels(ds))
    assert len(panels) == counts[name]
    for panel in panels:
        assert panel.figure.layout.meta["title"]
        assert len(panel.table)
        assert panel.sentences
        assert all(words.endswith(".") and "nan" not in words.lower() for words in panel.sentences)


def test_patching_names_what_carries_the_forecast(results):
    words = " ".join(read_patching(results["patching"], 0))
    assert "are 4 m apart on average" in words
    assert "from the corrupted to the clean one" in words
    assert (
        "the stream after layer 1, the EOS token (100 %) and the stream before layer 1, steps −12 to −1 (75 %)" in words
    )
    assert "2 of 9 patches carry half of it or more" in words
    assert "away" not in words
    results["patching"]["recovered"][0, 0] = -0.5
    results["patching"]["recovered"][1, 1] = 0.25
    again = " ".join(read_patching(judge(results["patching"], "recovered", floor=0.01, signed=True), 0))
    assert "1 of 9 patches carries half" in again
    assert "1 leads away" in again
    drowned = judge(results["patching"], "recovered", floor=2.0, signed=True)
    assert read_patching(drowned, 0)[1].startswith("No single patch stands out")
    assert read_patched_forecasts(drowned, 0)[0].startswith("No patch brings")
    with pytest.raises(InputError, match="stands out of the noise"):
        read_patching(drowned.drop_vars("recovered_estimate"), 0)


def test_a_share_that_brings_the_forecast_no_nearer_is_called_so(results):
    ds = results["patching"]
    assert read_patched_forecasts(ds, 0) == [
        "Patched at the stream after layer 1, the EOS token, the forecast is 0 m from the clean one on average; "
        "unpatched it is 4 m away."
    ]
    ds["forecast"][...] = ds["clean_forecast"] + 9.0
    assert "no nearer than before" in read_patched_forecasts(ds, 0)[1]


def test_attribution_patching_says_where_it_errs(results):
    words = " ".join(read_attribution_patching(results["attribution_patching"]))
    # 0.5 in one of nine cells
    assert "by 0.0556 on average and by up to 0.5 at a place" in words
    assert "rank correlation with patching is 0.9" in words
    assert "The estimate finds most at the stream before layer 1" in words
    assert "patching at the stream after layer 1, the EOS token" in words
    assert "steps −12 to −1 (+1.25)" in read_estimate(results["attribution_patching"], 0)[0]


@pytest.mark.parametrize("name", ["paths", "edges"])
def test_paths_are_named_with_their_signs(name, results):
    direct, between = read_paths(results[name])
    assert "decoder.0.cross_attn.0 (+0.5) and decoder.1.mlp (+0.125)" in direct
    assert "decoder.0.cross_attn.0 to decoder.1.mlp (−0.25)" in between
    table = next(measurement_of(results[name], name).draw_panels(results[name])).table
    assert len(table) == 3 * results[name].sizes["series"]
    assert not table.isna().any().any()


def test_effects_and_repair_are_counted(results):
    ds = results["effects"].isel(series=[0])
    largest, counted, later = read_effects(ds)
    assert "Set to zero, these change the forecast most" in largest
    assert "decoder.1.mlp (70 %), decoder.1.cross_attn.2 (60 %) and decoder.1.cross_attn.1 (50 %)" in largest
    assert counted == "7 of 8 components stand out of the noise directly, all of them by 1 % or more."
    assert later.startswith(
        "With all that follows, 6 of 8 do, all of them by 1 % or more, most of all decoder.1.cross_attn.2 (30 %)"
    )
    # what is hollow in the figure stands out neither way, and the sentences say which way it is
    silent = read_effects(judge(ds, "direct_share", floor=2.0))
    assert silent == ["Set to zero, no component changes the forecast directly by more than the noise.", later]
    both = read_effects(judge(judge(ds, "direct_share", floor=2.0), "total_share", floor=2.0))
    assert both[1] == "With all that follows, none changes it by more than the noise either."
    counted, most = read_self_repair(ds)
    assert "Of 7 components" in counted
    assert "undo a part of it for 7, and add to it for 0" in counted
    assert most == "Most is undone of decoder.1.mlp: 100 % of its direct effect."


def test_circuits_say_what_they_keep_and_lose(results):
    ds = results["circuit"]
    kept, faithful = read_circuit(ds)
    assert "3 of 8 components are kept: 2 of 6 cross-attention heads and 1 of 2 MLPs" in kept
    assert "90 %" in faithful
    assert "80 %" in faithful
    assert "1 m from the whole model's" in read_circuit_forecasts(ds, 0)[0]
    assert "that of the rest 8 m" in read_circuit_forecasts(ds, 0)[0]
    ds["refused"][1] = True
    assert "Of b nothing is said" in read_circuit(ds)[2]
    size, step = read_curve(ds)
    assert size.startswith("3 components are the smallest number tried that is 0.9 faithful")
    assert "0.1, is between 5 and 8 components" in step


def test_tables_hold_the_numbers_and_the_steps_they_cover(results):
    ds = results["patching"]
    table = next(measurement_of(ds, "patching").draw_panels(ds)).table.set_index(["component", "position"])
    row = table.loc[("blocks.1.hook_resid_pre", 12)]
    assert (row["recovered"], row["effect"]) == (0.75, 3.0)
    assert (row["position_start"], row["position_stop"], row["position_special"]) == (-12, 0, "")
    assert table.loc[("blocks.1.hook_resid_post", 24), "position_special"] == "EOS"
    circuit = list(measurement_of(results["circuit"], "circuit").draw_panels(results["circuit"]))
    kept = circuit[0].table.set_index("component")["in_circuit"]
    assert list(kept[kept].index) == ["decoder.1.cross_attn.1", "decoder.1.cross_attn.2", "decoder.1.mlp"]
    np.testing.assert_array_equal(circuit[-1].table["size"], np.flatnonzero(np.isfinite(results["circuit"]["curve"])))

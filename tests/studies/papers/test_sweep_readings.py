"""What the sweeps behind the paper's numbers run by default, and how results are read: against the paper's own."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from reproductions import ours, row
from tsfm_lens.data.gift_eval import gift_eval_configs, select_configs
from tsfm_lens.errors import InputError
from tsfm_lens.studies.papers.items import ITEMS, TABLE_3
from tsfm_lens.studies.papers.measures.benchmark import DESIGNS, Subject, rows_of
from tsfm_lens.studies.papers.reproduce import compare, item_of
from tsfm_lens.studies.papers.sweeps import sweep_config
from tsfm_lens.sweep.plan.data_sources import GiftEval
from tsfm_lens.sweep.plan.released import RELEASED
from tsfm_lens.sweep.results.gathering import Gathered
from tsfm_lens.testing import last_digit

SWEEPS = [item.id for item in ITEMS if item.sweep]


def test_sample_paths_and_contexts_are_those_of_table_3() -> None:
    printed = {"timesfm-2.5": (2048, None), "chronos-bolt": (512, None), "chronos": (512, 20), "toto-1": (4096, 20)}
    printed["moirai-1.1"] = (4000, 100)
    settings = {TABLE_3[each].model: numbers for each, numbers in printed.items()}
    for name in SWEEPS:
        config, subjects = sweep_config(item_of(name))
        assert {each.source for each in config.models} <= set(item_of(name).model.split(", "))
        assert all(subject.published for subject in subjects)
        for model in config.models:
            assert (model.context_length, model.num_samples) == settings[model.source]
        (source,) = config.data
        assert isinstance(source, GiftEval)
        assert source.missing == "error"
        assert len(select_configs(source.configs)) == len(gift_eval_configs()) == 97
        assert config.windows is None
        assert config.how == "zero"
    everything = {name: sweep_config(item_of(name))[0] for name in SWEEPS}
    assert len(everything["S3-F3"].models) == 5
    for name in ("S3-T1", "S3-T4"):
        variants = everything[name].variants
        assert variants.recipes == ("timesfm-28", "toto-29")
        assert not variants.scale_recipes
        # the layers of Chronos-Bolt's rows are not given
        assert [model.source for model in everything[name].models] == [
            "google/timesfm-2.5-200m-pytorch",
            "Datadog/Toto-Open-Base-1.0",
        ]
    layers = {"S3-F7": (7, 10, 13), "S3-F10": None, "S3-F11": None, "S3-F16": (0, 10), "S3-F17": (0, 10)}
    layers |= {"S3-F18": (11, 2), "S3-F19": (11, 5)}
    for name, wanted in layers.items():
        chosen = everything[name].variants.heads_at
        assert chosen is not None
        assert chosen.layers == wanted
        assert chosen.orders == ("stable_rank:low", "stable_rank:high")
        assert chosen.tolerance == 0.01
        assert chosen.search == "scan"


def test_which_model_stands_for_which_row() -> None:
    known = ["TimesFM 2.5, 28 % of heads, 2 MLPs", "Toto, 29 % of heads"]
    timesfm, toto = Subject("a", "timesfm-2.5", 20, 16), Subject("b", "toto-1", 2, 2)
    assert rows_of([timesfm, toto]) == dict(zip(known, (timesfm, toto), strict=True))
    assert rows_of([timesfm]) == {known[0]: timesfm}
    small, base = Subject("c", "chronos-bolt", 6, 8), Subject("d", "chronos-bolt", 12, 12)
    assert list(rows_of([small])) == known
    # the paper's own model, whose rows it leaves open, stands for no other
    with pytest.raises(InputError, match="does not say which layers"):
        rows_of([base])
    assert list(rows_of([timesfm, base])) == known[:1]
    with pytest.raises(InputError, match="both stand for the row"):
        rows_of([timesfm, small])


def gathered(**results: pd.DataFrame) -> Gathered:
    return Gathered("made", results, {}, [])


def test_the_paper_s_own_results_give_the_paper_s_numbers() -> None:
    timesfm, toto = Subject("a", "timesfm-2.5", 20, 16), Subject("b", "toto-1", 12, 12)
    own = {"timesfm-28": ([6.12, 2.46, 4.72, 5.86, 6.59], 33, 12), "toto-29": ([3.54, -38, 2.73, 3.6, -24.64], 41, 30)}
    metrics, sizes = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS"), {"a": (88, 320, 2), "b": (42, 144, 0)}
    rows = [
        {"model": model, "recipe": recipe, "metric": metric, "n_resilient": resilient, "n_improved": improved}
        | dict(zip(("heads_ablated", "heads_total", "n_mlps"), sizes[model], strict=True))
        | dict.fromkeys(("change", "lower", "upper"), percent / 100)
        for model, (recipe, (changes, resilient, improved)) in zip("ab", own.items(), strict=True)
        for metric, percent in zip(metrics, changes, strict=True)
    ]
    table = pd.DataFrame(rows)
    for name, count in (("S3-T4", 18), ("S3-T1", 8)):
        found = compare(item_of(name), DESIGNS[name].read(gathered(recipes=table), [timesfm, toto]))
        assert found.sizes["quantity"] == count
        # 27.5 and 29.2 % of heads are printed without decimals
        np.testing.assert_allclose(found["difference"], 0, atol=last_digit(0))
        assert (np.abs(found["difference"]) > 1e-9).sum() == 2
        assert "scaled" not in found.attrs["note"]


def test_the_released_counts_give_figure_11() -> None:
    subjects = [Subject(name, name, len(counts), heads) for name, (heads, counts) in RELEASED.items()]
    table = pd.DataFrame(
        [
            {"model": s.source, "layer": layer, "of": s.heads, "kept": kept, "ablated": s.heads - kept, "better": True}
            for s in subjects
            for layer, kept in enumerate(RELEASED[s.source][1])
        ]
    )
    # what the other order keeps does not count
    table = pd.concat([table, table.assign(kept=99, better=False)])
    found = compare(item_of("S3-F11"), DESIGNS["S3-F11"].read(gathered(heads_at=table), subjects))
    printed = found.where(found["paper"].notnull(), drop=True)
    assert printed.sizes["quantity"] == 20 + 3 * 12
    np.testing.assert_array_equal(printed["difference"], 0)
    # 177 of 320
    words = "timesfm-2.5: heads ablated of all, every layer at heads@1pp by itself"
    assert ours(found, words) == pytest.approx(100 * 177 / 320)


@pytest.mark.parametrize(("bolt_rise", "holds"), [(0.02, 1.0), (0.5, 0.0)])
def test_half_of_the_mlps_of_bolt_and_toto(bolt_rise: float, holds: float) -> None:
    subjects = [Subject("a", "chronos-bolt", 12, 12), Subject("b", "toto-1", 12, 12)]
    rows = [
        (model, part, 6 - width // 2, 5 + width // 2) for model in "ab" for part in ("mlp", "heads") for width in (4, 6)
    ]
    half = {"a": bolt_rise, "b": 0.1}
    # only ranges of six MLPs count
    rise = [half[m] if part == "mlp" and last - first == 5 else 1 - half[m] for m, part, first, last in rows]
    table = pd.DataFrame(rows, columns=["model", "part", "first", "last"])
    table = table.assign(family="ranges", change=rise, lower=rise, upper=rise)
    table["baseline_mase"] = table["model"].map({"a": 0.8, "b": 0.7})
    table["label"] = [f"{part} of layers {first} to {last}" for _, part, first, last in rows]
    found = compare(item_of("S3-F4"), DESIGNS["S3-F4"].read(gathered(effects=table), subjects))
    assert float(row(found, "half_mlps")["paper"]) == 1
    assert ours(found, "half_mlps") == holds
    assert ours(found, "Toto: MASE over the seasonal naive's, whole model") == 0.7

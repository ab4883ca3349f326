"""The printed tables of SAMformer: whole, and giving what the paper says follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from scipy import stats

from tsfm_lens.errors import InputError
from tsfm_lens.studies.papers import values_samformer as printed
from tsfm_lens.studies.papers.over_seeds import compare, improvement
from tsfm_lens.studies.samformer import make_model
from tsfm_lens.testing import assert_close
from tsfm_lens.testing.tolerance import last_digit


def means(cells: Mapping[printed.Cell, printed.Printed]) -> dict[printed.Cell, float]:
    return {cell: value.mean for cell, value in cells.items()}


TABLES = {"MSE": printed.MSE, "MAE": printed.MAE}
FOLLOWING = ("TSMixer+SAM", "Transformer", "TSMixer", "Informer", "Autoformer", "FEDformer")


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_whole(table: str) -> None:
    for model, cells in TABLES[table].items():
        without = {"Electricity"} if model in ("iTransformer", "PatchTST") else set()
        wanted = {(name, horizon) for name in printed.DATASETS if name not in without for horizon in printed.HORIZONS}
        assert set(cells) == wanted
        own = model in printed.COLUMNS[:4]
        assert all(math.isnan(value.std) != own for value in cells.values())
    for cells in printed.RHO.values():
        assert len(cells) == 32
        assert all(0 <= value.mean <= 1 for value in cells.values())
    assert set(printed.TEMPORAL_MSE) == set(printed.TEMPORAL_MAE) == set(printed.IDENTITY_MSE) - {("Traffic", 720)}


@pytest.mark.parametrize("model", FOLLOWING)
@pytest.mark.parametrize("metric", [0, 1], ids=["MSE", "MAE"])
def test_overall_improvements_follow_from_the_tables(model: str, metric: int) -> None:
    table = (printed.MSE, printed.MAE)[metric]
    found = improvement(means(table["SAMformer"]), means(table[model]))
    assert abs(found - printed.IMPROVEMENT[model][metric]) < last_digit(2)


def test_improvements_that_do_not_follow_from_the_tables() -> None:
    """Known beforehand from the index: 2.06 and 3.96 in MSE where 3.94 and 11.13 are printed, and others in MAE."""
    wanted = {"iTransformer": (2.06, -1.25), "PatchTST": (3.96, -0.57)}
    for model, numbers in wanted.items():
        for table, number in zip((printed.MSE, printed.MAE), numbers, strict=True):
            assert abs(improvement(means(table["SAMformer"]), means(table[model])) - number) < last_digit(2)
    sam = improvement(means(printed.MSE["TSMixer+SAM"]), means(printed.MSE["TSMixer"]))
    assert abs(sam - 9.58) < last_digit(2)


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        (printed.MSE["Transformer"], printed.TEMPORAL_MSE, 16.69),
        (printed.MAE["Transformer"], printed.TEMPORAL_MAE, 12.61),
        (printed.MSE["SAMformer"], printed.IDENTITY_MSE, 9.48),
        (printed.MAE["SAMformer"], printed.IDENTITY_MAE, 6.78),
    ],
)
def test_improvements_over_ablations(
    ours: Mapping[printed.Cell, printed.Printed], theirs: Mapping[printed.Cell, printed.Printed], wanted: float
) -> None:
    assert abs(improvement(means(ours), means(theirs)) - wanted) < last_digit(2)


def test_without_a_neighbourhood_both_mixers_are_printed_alike() -> None:
    for cell, rho in printed.RHO["TSMixer+SAM"].items():
        if rho.mean == 0:
            assert printed.MSE["TSMixer+SAM"][cell].mean == printed.MSE["TSMixer"][cell].mean


def test_both_tests_are_those_of_samples() -> None:
    """Samples of the very means and deviations, tested as samples."""
    rng = np.random.default_rng(0)
    for scale in (0.3, 1.0, 4.0):
        first, second = rng.standard_normal(5), scale * rng.standard_normal(5) + 0.7
        found = compare(*((float(part.mean()), float(part.std(ddof=1))) for part in (first, second)))
        assert_close(found.welch, stats.ttest_ind(first, second, equal_var=False).pvalue, depth=1000)
        assert_close(found.pooled, stats.ttest_ind(first, second).pvalue, depth=1000)
        assert_close(found.deviations, (first.mean() - second.mean()) / second.std(ddof=1), depth=100)


def test_bold_numbers_of_table_7_are_those_of_the_pooled_test() -> None:
    """At 0.05; Welch's test differs in Traffic at 720 alone, by which it is told that the paper took the other."""
    for cell, ours in printed.MSE["SAMformer"].items():
        theirs = printed.MSE["TSMixer+SAM"][cell]
        found = compare((ours.mean, ours.std), (theirs.mean, theirs.std))
        bold = cell not in printed.NOT_SIGNIFICANT
        assert (found.pooled < 0.05) == bold, (cell, found)
        assert (found.welch < 0.05) == (bold and cell != ("Traffic", 720)), (cell, found)
        assert (found.difference > 0) == (cell[0] == "Weather" or cell == ("ETTm1", 96))


def test_no_spread_and_too_few_seeds() -> None:
    assert compare((1.0, 0.0), (1.0, 0.0)).welch == 1.0
    assert compare((1.0, 0.0), (2.0, 0.0)).pooled == 0.0
    for case in ({"n": 1}, {"n_second": 1}):
        with pytest.raises(InputError, match="two seeds or more"):
            compare((1.0, 0.1), (2.0, 0.1), **case)
    with pytest.raises(InputError, match="deviations of at least 0"):
        compare((1.0, math.nan), (2.0, 0.1))
    with pytest.raises(InputError, match="0 common cells"):
        improvement({"a": 1.0}, {"b": 1.0})


@pytest.mark.parametrize("horizon", printed.HORIZONS)
def test_parameters_are_counted_by_the_stated_sizes(horizon: int) -> None:
    for bias in (False, True):
        model = make_model("samformer", 512, horizon, 7, bias=bias)
        held = sum(weight.numel() for weight in model.parameters())
        assert held == printed.parameter_count(512, horizon, 7, bias=bias)
        # table 8 has a few hundred beside W and its bias, and the same for every number of channels
        assert held - printed.PARAMETERS["SAMformer"][horizon] > 30_000


def test_ratios_of_table_8_follow() -> None:
    kinds = [name for name in printed.PARAMETERS if name != "SAMformer"]
    ratios = []
    for horizon in printed.HORIZONS:
        of_kind = {name: printed.PARAMETERS[name][horizon] / printed.PARAMETERS["SAMformer"][horizon] for name in kinds}
        ratios.append(sum(of_kind.values()) / len(of_kind))
    assert_close(np.round(ratios, 2), [6.64, 3.85, 2.64, 1.77], depth=4)

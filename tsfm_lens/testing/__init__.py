"""The conformance suite: ten oracles that every wiring must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from tsfm_lens.console import console
from tsfm_lens.models.architecture import Adapter
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import (
    Case,
    OracleResult,
    accounting,
    example_case,
    patching,
    quick_check,
    reading_changes_nothing,
    same_forecast,
    zero_ablation,
)
from tsfm_lens.testing.oracles_attention import head_order, patterns
from tsfm_lens.testing.oracles_runs import (
    fan_out_equals_alone,
    leaves_no_trace,
    native_traces,
    rollout_equals_forward,
)
from tsfm_lens.testing.tolerance import assert_close, rounding

ORACLES: tuple[Callable[[Case], OracleResult], ...] = (
    same_forecast,
    reading_changes_nothing,
    accounting,
    zero_ablation,
    patterns,
    patching,
    rollout_equals_forward,
    leaves_no_trace,
    fan_out_equals_alone,
    head_order,
)


def check_lens(lens: Lens, case: Case | None = None) -> list[OracleResult]:
    """Run all ten oracles.

    Args:
        lens: the model.
        case: the series to use; :func:`example_case` if None.
    """
    checked = example_case(lens) if case is None else case
    return [oracle(checked) for oracle in ORACLES]


def check_wiring(wiring: Callable[[Any], Adapter], model: Any, *, quiet: bool = False) -> list[OracleResult]:
    """Run the ten oracles on a model through a wiring of one's own, and print what each found.

    Draw weights large enough that every head matters, or train the model: an oracle that zeroes a head cannot
    tell a right wiring from a wrong one if the head does nothing.

    Args:
        wiring: an adapter class, or any function of the model that returns an adapter; see
            :class:`tsfm_lens.models.adapter.PatchAdapter`.
        model: the native model, as the wiring takes it.
        quiet: do not print the table.

    Returns:
        One result an oracle; ``result.passed`` tells.

    Raises:
        WiringError: a path or layout of the wiring does not exist in the model.
    """
    adapter = wiring(model)
    lens = Lens(adapter, type(model).__name__)
    results = check_lens(lens)
    if not quiet:
        console().print(oracle_table(results, f"{adapter.wiring.architecture}: {type(model).__name__}"))
    return results


def oracle_table(results: Iterable[OracleResult], title: str) -> Table:
    """The oracles as a table: what each found, what it allows, and where the largest deviation was."""
    table = Table("oracle", "result", "largest deviation", "allowed", "where", title=title)
    for result in results:
        verdict = Text("passed", style="green") if result.passed else Text("FAILED", style="red")
        table.add_row(result.oracle, verdict, f"{result.error:.1e}", f"{result.bound:.0e}", result.detail)
    return table


__all__ = [
    "ORACLES",
    "Case",
    "OracleResult",
    "assert_close",
    "check_lens",
    "check_wiring",
    "example_case",
    "native_traces",
    "oracle_table",
    "quick_check",
    "rounding",
]

"""The conformance suite: ten oracles that every wiring must pass."""

from __future__ import annotations

from collections.abc import Callable

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


__all__ = [
    "ORACLES",
    "Case",
    "OracleResult",
    "check_lens",
    "example_case",
    "native_traces",
    "quick_check",
]

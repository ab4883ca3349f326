"""Conformance suite: the oracles that every wiring must pass."""

from tsfm_lens.testing.oracles import Case, OracleResult, example_case, quick_check
from tsfm_lens.testing.oracles_runs import native_traces
from tsfm_lens.testing.suite import ORACLES, check_lens, check_wiring, oracle_table
from tsfm_lens.testing.tolerance import assert_close, last_digit, rounding

__all__ = [
    "ORACLES",
    "Case",
    "OracleResult",
    "assert_close",
    "check_lens",
    "check_wiring",
    "example_case",
    "last_digit",
    "native_traces",
    "oracle_table",
    "quick_check",
    "rounding",
]

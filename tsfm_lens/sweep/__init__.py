"""The ablation lab: sweeps over models, variants and benchmarks, kept in a store and reported with intervals."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsfm_lens.sweep.config import SweepConfig, parse_config, read_config
    from tsfm_lens.sweep.results import Gathered, gather
    from tsfm_lens.sweep.run import Outcome, plan_sweep, run_sweep
    from tsfm_lens.sweep.store import Store

# found when first asked for: the store and its engines need no torch
_FROM = {
    "Gathered": "results",
    "Outcome": "run",
    "Store": "store",
    "SweepConfig": "config",
    "gather": "results",
    "parse_config": "config",
    "plan_sweep": "run",
    "read_config": "config",
    "run_sweep": "run",
}
__all__ = [
    "Gathered",
    "Outcome",
    "Store",
    "SweepConfig",
    "gather",
    "parse_config",
    "plan_sweep",
    "read_config",
    "run_sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_FROM[name]}"), name)

"""The ablation lab: sweeps over models, variants and benchmarks, kept in a store and reported with intervals."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsfm_lens.sweep.plan.config import SweepConfig, parse_config, read_config
    from tsfm_lens.sweep.results.gathering import Gathered, gather
    from tsfm_lens.sweep.run.sweeping import Outcome, plan_sweep, run_sweep
    from tsfm_lens.sweep.store.folder import Store

# imported at first use: the store and its engines need no torch
_FROM = {
    **dict.fromkeys(("SweepConfig", "parse_config", "read_config"), "plan.config"),
    **dict.fromkeys(("Gathered", "gather"), "results.gathering"),
    **dict.fromkeys(("Outcome", "plan_sweep", "run_sweep"), "run.sweeping"),
    "Store": "store.folder",
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

"""Changes of a metric dataset by dataset, and the number of datasets on which a variant does harm or good."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import unknown_name
from tsfm_lens.sweep.statistics.pairing import on_log_scale, pair
from tsfm_lens.sweep.statistics.pooling import METRICS, PLAIN, as_series_sums


def dataset_changes(frame: pd.DataFrame, *, plain: str = PLAIN, metric: str = "MASE") -> pd.DataFrame:
    """Compute the change of a metric on each dataset by itself, over the windows that both sides have.

    Args:
        frame, plain, metric: as for :func:`.changes.changes`; a metric, not a distance.

    Returns:
        A row for each model, variant and dataset: ``value``, ``baseline``, ``change``; NaN where left out.
    """
    only_metrics(metric)
    rows: list[dict[str, Any]] = []
    for pairs in pair(as_series_sums(frame, [metric]), metric, plain):
        for group in pairs.groups():
            value = baseline = np.empty((len(group.variants), 0))
            if group.datasets:
                sides = (group.variant_sums, group.plain)
                value, baseline = (np.exp(on_log_scale(metric)(*side.by_dataset())) for side in sides)
            for v, variant in enumerate(group.variants):
                key = {"model": pairs.model, "variant": variant}
                for d, name in enumerate(group.datasets):
                    rows.append({**key, "dataset": name, "value": value[v, d], "baseline": baseline[0, d]})
                rows += [{**key, "dataset": name} for name in group.absent]
    columns = ["model", "variant", "dataset", "value", "baseline"]
    table = pd.DataFrame(rows, columns=columns).sort_values(columns[:3], ignore_index=True)
    return table.assign(change=table["value"] / table["baseline"] - 1)


def only_metrics(metric: str) -> None:
    """Refuse distances, which have no baseline.

    Raises:
        UnknownNameError: no such metric.
    """
    if metric not in METRICS:
        raise unknown_name("metric", metric, METRICS, hint="A distance has no baseline to change from.")


def resilience(
    frame: pd.DataFrame, *, plain: str = PLAIN, metric: str = "MASE", tolerance: float = 0.05
) -> pd.DataFrame:
    """Count the datasets on which a variant does little harm, and those on which it does good.

    Args:
        frame, plain, metric: as for `dataset_changes`.
        tolerance: the rise below which a dataset counts as resilient; an improved one does too.

    Returns:
        A row for each model and variant: ``n_resilient``, ``n_improved``, ``n_datasets`` with a change,
        ``n_left_out`` without.

    Source:
        S3-AGG of the measurements index (N_resilient, N_improved).
    """
    table = dataset_changes(frame, plain=plain, metric=metric)
    change = table["change"]
    flags = table.assign(
        n_resilient=change < tolerance, n_improved=change < 0, n_datasets=change.notna(), n_left_out=change.isna()
    )
    names = ["n_resilient", "n_improved", "n_datasets", "n_left_out"]
    return flags.groupby(["model", "variant"], sort=True)[names].sum().astype(int).reset_index()

"""The evaluation sets that a configuration names."""

from __future__ import annotations

from pathlib import Path

from tsfm_lens.data.bundled import bundled_names
from tsfm_lens.data.dysts_sets import dysts_sets
from tsfm_lens.data.evaluation import EvaluationSet
from tsfm_lens.data.evaluation_sources import gluonts_file, holdout_sets
from tsfm_lens.data.gift_eval import gift_eval, gift_eval_folder
from tsfm_lens.errors import InputError
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.data_sources import Bundled, Dysts, File, Folder, GiftEval, Gluonts, Source


def evaluation_sets(config: SweepConfig) -> list[EvaluationSet]:
    """All sets of a sweep, with its number of windows drawn from each.

    Raises:
        InputError: a source cannot be read, or two sets have one name.
        UnknownNameError: no such dataset.
    """
    sets = [dataset for source in config.data for dataset in _read(source)]
    names = [dataset.name for dataset in sets]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"dataset {repeated[0]!r} is in the configuration more than once")
    return [dataset.sample(config.windows, config.seed) for dataset in sets]


def _read(source: Source) -> list[EvaluationSet]:
    if isinstance(source, GiftEval):
        return gift_eval(source.path, source.configs, missing=source.missing)
    if isinstance(source, Bundled):
        names = list(source.names or bundled_names())
        return holdout_sets(names, source.horizon, source.windows, source.stride)
    if isinstance(source, File):
        # a path, so that a file that is not there is never taken for a bundled series
        return holdout_sets(
            Path(source.path), source.horizon, source.windows, source.stride, source.name or None, **source.reading
        )
    if isinstance(source, Folder):
        name = source.name or None
        return gift_eval_folder(
            source.path, source.term, name=name, horizon=source.horizon, freq=source.freq, domain=source.domain
        )
    if isinstance(source, Gluonts):
        return gluonts_file(
            source.path,
            source.horizon,
            source.windows,
            source.stride,
            source.name or None,
            freq=source.freq,
            seasonality=source.seasonality,
            domain=source.domain,
        )
    assert isinstance(source, Dysts)
    return dysts_sets(
        source.systems,
        source.horizon,
        source.windows,
        source.stride,
        points=source.points,
        periods=source.periods,
        instances=source.instances,
        seed=source.seed,
        integrator=source.integrator,
        multivariate=source.multivariate,
        path=source.path,
    )

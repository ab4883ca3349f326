"""Checks that every measurement must pass, each with a name.

They serve measurements of this library as well as those that users register.
:func:`probe_checks` yields them; a :class:`ProbeTrial` computes the results that they
look at. A check is a function of a trial; the decorator :func:`_check` registers it
and says for which trials. Whether a measurement's numbers are right is for its own
tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any
from unittest import mock

import numpy as np
import torch
import xarray as xr

from tsfm_lens.core.errors import InputError, LensError
from tsfm_lens.core.estimates import estimated_effects
from tsfm_lens.core.needs import NEEDS
from tsfm_lens.core.registry import FigurePanel, Measurement, find, measurements
from tsfm_lens.core.results import Results
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, Run, load
from tsfm_lens.testing.tolerance import assert_close

__all__ = ["ProbeCheck", "ProbeTrial", "probe_checks"]

MODELS = ("bolt-nano", "chronos-nano", "chronos2-nano")
"""Embedded models that checks run on.

A measurement is tried on the first two that it is defined for, and with covariates on
the first that takes them.
"""
STEPS = 72
HORIZON = 3
SEASON = 12
SERIES = 3
# number of roundings that may lie between two results that should be equal; it enters
# the tolerance
DEPTH = 10_000
# factor on a series; a power of two, so that floats scale without rounding
UNIT = 2.0**10
# endings of the variables that state what an effect is
STATEMENTS = ("size", "low", "high", "p", "significant", "leads")
# variables that consist of rounding alone, as differences of equal numbers do, and so
# are not compared
ROUNDING = {
    "completeness_error",
    "identity_error",
    "path_error",
    "sign_agreement",
    "series_agreement",
}
LABELLED = ("layer", "head", "step", "series", "quantile", "variant", "metric")
"""Dimensions along which a result has labels."""


class ProbeTrial:
    """Trial of a measurement on a small model.

    It holds the results that several checks look at.

    Attributes:
        entry: the measurement.
        model: name of an embedded model.
        lens: the model.
    """

    def __init__(self, entry: Measurement, model: str) -> None:
        self.entry = entry
        self.model = model
        self.lens = _lens(model)

    @cached_property
    def series(self) -> SeriesBatch:
        """Series that the measurement is tried on.

        They have covariates if the measurement needs them.
        """
        return example_series(covariates=self.entry.needs == "covariates")

    @cached_property
    def result(self) -> xr.Dataset:
        """Result of the measurement for three series."""
        return self.compute(self.series)

    @cached_property
    def panels(self) -> list[FigurePanel]:
        """Panels of a report of :attr:`result`."""
        return list(self.entry.draw_panels(self.result))

    @cached_property
    def results(self) -> Results:
        """Results of the run of :attr:`result`; each kind has its example options."""
        return self._results(self.series)

    def compute(self, batch: SeriesBatch, **options: Any) -> xr.Dataset:
        """Compute the measurement of series, with the small options of its example.

        Args:
            batch: the series.
            options: further arguments of the runs.

        Returns:
            The result.
        """
        entry = self.entry
        if entry.takes != "pair":
            results = self._results(batch, **options)
            return results.compute(entry.kind, **entry.example)
        assert entry.function is not None
        pair = [
            _run(self.lens, series, rollout=False, holdout=False, **options)
            for series in (batch, _half_a_season_later(batch))
        ]
        return entry.function(*pair, **entry.example)

    def _results(self, batch: SeriesBatch, **options: Any) -> Results:
        """Return the results of a run, each with the options of its example."""
        run = _run(self.lens, batch, **options)
        # of all kinds, since a measurement and its figures may be made of others
        examples = {kind: entry.example for kind, entry in measurements().items()}
        return Results(run, examples)

    @property
    def of_all_series(self) -> bool:
        """Whether it measures all series of a run, or of a pair of runs."""
        return self.entry.takes in ("run", "pair") and not self.entry.one_item

    @property
    def is_of_series(self) -> bool:
        """Whether it measures all series, and their order does not matter."""
        # sample paths and shuffled covariates are drawn from one generator, series by
        # series, so that a series gets other numbers in another place
        is_drawn = self.lens.emits == "token" or self.entry.needs == "covariates"
        return self.of_all_series and not is_drawn


@dataclass(frozen=True)
class ProbeCheck:
    """One check of one measurement on one model.

    Calling it raises an AssertionError that says what is wrong.

    Attributes:
        trial: the measurement and the model.
        name: of the check.
        function: does the check; raises AssertionError.
    """

    trial: ProbeTrial
    name: str
    function: Callable[[ProbeTrial], None]

    def __str__(self) -> str:
        return f"{self.trial.entry.kind}-{self.trial.model}-{self.name}"

    def __call__(self) -> None:
        """Do the check."""
        try:
            self.function(self.trial)
        except AssertionError as error:
            # a test may call many checks; the note says which of them failed
            error.add_note(str(self))
            raise


Applies = Callable[[ProbeTrial], bool]
_CHECKS: dict[str, tuple[Applies, Callable[[ProbeTrial], None]]] = {}


def probe_checks(
    kind: str | None = None, models: Sequence[str] = MODELS
) -> Iterator[ProbeCheck]:
    """Yield the checks that a measurement must pass, by name.

    scikit-learn yields those of an estimator in the same way.

    Args:
        kind: kind of the measurement; if None, all that are computed from a run.
        models: embedded models to try it on: the first two that it is defined for, one
            that takes covariates, and one that it is not defined for, which it must
            refuse.

    Yields:
        A check, which is called without arguments.

    Example:
        >>> checks = testing.probe_checks("head_spectra", ["bolt-nano"])
        >>> [check.name for check in checks]
        ['labels', 'figures', 'sentences']
    """
    if kind is not None:
        entries = [find(kind)]
    else:
        entries = list(measurements().values())
    for entry in entries:
        if not entry.of_run:
            continue
        if entry.needs:
            needs = NEEDS[entry.needs]
        else:
            needs = None
        able = [name for name in models if needs is None or needs.met(_lens(name))]
        for model in able[:2]:
            trial = ProbeTrial(entry, model)
            for name, (applies, function) in _CHECKS.items():
                if applies(trial):
                    yield ProbeCheck(trial, name, function)
        for model in [name for name in models if name not in able][:1]:
            yield ProbeCheck(ProbeTrial(entry, model), "refusal", _check_refusal)
        # measurements of weights alone, or of several models, see no covariates
        if entry.cost == "weights" or entry.takes not in ("run", "pair", "first"):
            continue
        covering = [name for name in able if "covariates" in _lens(name).traits]
        for model in covering[:1]:
            yield ProbeCheck(ProbeTrial(entry, model), "covariates", _check_covariates)


@cache
def example_series(*, covariates: bool = False, seed: int = 1) -> SeriesBatch:
    """Return three noisy seasons, each of another shape.

    With ``covariates``, each has a covariate whose future is known.
    """
    steps = np.arange(STEPS)
    # the seed of the targets is fixed; ``seed`` changes the covariates alone
    rng = np.random.default_rng(0)
    seasons = [
        np.sin(2 * np.pi * (steps / SEASON + index / 5)) for index in range(SERIES)
    ]
    values = [
        10 + index + season + 0.1 * rng.normal(size=STEPS)
        for index, season in enumerate(seasons)
    ]
    if not covariates:
        return as_series(values, seasonality=SEASON)
    causes = np.random.default_rng(seed).normal(size=(SERIES, STEPS + HORIZON))
    items = [
        {
            "target": target,
            "past_covariates": {"cause": cause[:STEPS]},
            "future_covariates": {"cause": cause[STEPS:]},
        }
        for target, cause in zip(values, causes, strict=True)
    ]
    return as_series(items, seasonality=SEASON)


@cache
def _lens(model: str) -> Lens:
    """Open an embedded model, once for all checks."""
    return load(model)


@lru_cache(maxsize=32)
def _run(
    lens: Lens, batch: SeriesBatch, *, holdout: bool = True, **options: Any
) -> Run:
    """Run a model on series, once for all measurements that are tried on them."""
    # a path of tokens takes a forward per step, so that there are few
    if lens.emits == "token" and holdout:
        options["num_samples"] = 2
    return lens.run(batch, HORIZON, holdout=holdout, **options)


@cache
def _half_a_season_later(batch: SeriesBatch) -> SeriesBatch:
    """Shift series like the second run of Results.shifted."""
    values = tuple(np.roll(series, SEASON // 2) for series in batch.values)
    return replace(batch, values=values)


@cache
def _in_reverse(batch: SeriesBatch) -> SeriesBatch:
    """Reverse items and not series: the variates of one have an order of their own."""
    items = list(dict.fromkeys(batch.groups))
    return batch.select(items[::-1])


@cache
def _in_other_units(batch: SeriesBatch) -> SeriesBatch:
    """Scale the first series."""
    first, *rest = batch.values
    return replace(batch, values=(first * UNIT, *rest))


@cache
def _with_copy(batch: SeriesBatch) -> SeriesBatch:
    """Repeat the last series."""
    values = [*batch.values, batch.values[-1]]
    return as_series(values, seasonality=SEASON)


def _check(
    name: str, applies: Applies = lambda trial: True
) -> Callable[[Callable[[ProbeTrial], None]], Callable[[ProbeTrial], None]]:
    """Register a check under a name, with a test of the trials that it is for."""

    def register(function: Callable[[ProbeTrial], None]) -> Callable[..., None]:
        _CHECKS[name] = (applies, function)
        return function

    return register


@_check("labels")
def _check_labels(trial: ProbeTrial) -> None:
    """Check that the result says what it is, and of what model.

    Its dimensions must have names and labels, and units must be texts.
    """
    result = trial.result
    assert result.attrs.get("kind") == trial.entry.kind, "attrs['kind'] is not its kind"
    for attribute in ("title", "model"):
        assert result.attrs.get(attribute), f"attrs[{attribute!r}] is not set"
    unlabelled = [
        name for name in LABELLED if name in result.dims and name not in result.coords
    ]
    assert not unlabelled, f"dimensions without labels: {unlabelled}"
    unnamed = [name for name in result.dims if str(name).startswith("dim_")]
    assert not unnamed, f"dimensions without a name: {unnamed}"
    for name, variable in result.data_vars.items():
        # a test's ``units`` is a number, that of the independent units tested
        if str(name).endswith(("_p", "_significant")):
            continue
        units = variable.attrs.get("units", "")
        assert isinstance(units, str), f"units of {name} are {units!r}, expected a text"


@_check("figures")
def _check_figures(trial: ProbeTrial) -> None:
    """Check that figures are drawn where the model has all that they need.

    Those of a report must have tables with rows.
    """
    entry = trial.entry
    for panel in trial.panels:
        assert panel.figure.data, "a panel draws nothing"
        assert panel.table is None or len(panel.table), "a panel has an empty table"
    for figure in entry.figures:
        if figure.needs and not NEEDS[figure.needs].met(trial.lens):
            continue
        # drawn as a panel already
        if figure.table and not (entry.has_own_panels or figure.probe_options):
            continue
        result = trial.result
        if figure.probe_options:
            options = {**entry.example, **figure.probe_options}
            result = trial.results.compute(entry.kind, **options)
        further_results = [trial.results[kind] for kind in figure.beside]
        assert figure.draw(result, *further_results).data, (
            f"{figure.name} draws nothing"
        )


@_check("sentences")
def _check_sentences(trial: ProbeTrial) -> None:
    """Check that the sentences of a report end as sentences."""
    for panel in trial.panels:
        for sentence in panel.sentences:
            is_sentence = sentence.endswith((".", "!"))
            assert is_sentence, f"does not end in a point: {sentence!r}"


@_check("order", lambda trial: trial.is_of_series)
def _check_order(trial: ProbeTrial) -> None:
    """Check that the order of series changes neither numbers nor statements.

    A series must have the same numbers anywhere among the others.
    """
    # results with sources calibrate on the first series and measure on the others, so
    # that the order matters
    if "sources" in trial.result.attrs:
        return
    found = trial.compute(_in_reverse(trial.series))
    _assert_same_statements(found, trial.result)
    if "series" in found.dims:
        found = found.sel(series=trial.result["series"].values)
        names = [name for name, variable in found.items() if "series" in variable.dims]
        _assert_same(found[names], trial.result[names])


@_check("units", lambda trial: trial.is_of_series)
def _check_units(trial: ProbeTrial) -> None:
    """Check that no statement depends on the unit of one of the series."""
    scaled = trial.compute(_in_other_units(trial.series))
    _assert_same_statements(scaled, trial.result)


@_check("copies", lambda trial: trial.is_of_series)
def _check_copies(trial: ProbeTrial) -> None:
    """Check that no statement gets stronger by copies of a series."""
    copied = trial.compute(_with_copy(trial.series))
    _assert_same_statements(copied, trial.result)


@_check("memory", lambda trial: trial.of_all_series and not trial.entry.whole_batch)
def _check_memory(trial: ProbeTrial) -> None:
    """Check that where one series fits into memory only one runs at a time.

    The results must be the same.
    """
    expected = trial.result
    with _one_item_at_a_time(trial.lens) as rows:
        # of a copy, since the series may have been run already
        found = trial.compute(replace(trial.series))
    # an item may have several rows, its target and covariates, which stay together
    max_rows = len(trial.series) // SERIES
    assert max(rows, default=0) <= max_rows, f"runs {max(rows)} series at once"
    _assert_same(found, expected)


@_check("twins", lambda trial: trial.is_of_series)
def _check_twins(trial: ProbeTrial) -> None:
    """Check that the effects that it tests are compared with untrained models."""
    names = estimated_effects(trial.result)
    if not names:
        return
    found = trial.compute(trial.series, twins=1)
    if "twins_refused" in found.attrs:
        return
    for name in names:
        assert f"{name}_twins" in found, f"{name} has no twins"
        assert found.sizes["twin"] == 1


def _check_refusal(trial: ProbeTrial) -> None:
    """Check that a model without what it needs is refused.

    The registry must refuse it by name, and so must the probe itself.
    """
    entry = trial.entry
    # first the registry refuses; then, with no need declared, it lets the model through
    # and the probe has to refuse
    for needs in (entry.needs, ""):
        message = ""
        with mock.patch.object(entry, "needs", needs):
            try:
                trial.compute(example_series())
            except InputError as error:
                message = str(error)
        assert message, f"takes {trial.model}, which has no {entry.needs}"
        assert not needs or trial.lens.model_id in message, message


def _check_covariates(trial: ProbeTrial) -> None:
    """Check that the model sees the covariates, and that only targets are results."""
    try:
        first, second = (
            trial.compute(example_series(covariates=True, seed=seed)) for seed in (1, 2)
        )
    except LensError:
        # the measurement refuses covariates with a message, which is allowed
        return
    if "series" in first.dims and "segment" not in first.dims:
        labels = [label for label in first["series"].values if "cause" in label]
        assert not labels, f"has results of covariates: {labels}"
    same = first.drop_attrs().equals(second.drop_attrs())
    assert not same, "leaves covariates out"


@contextmanager
def _one_item_at_a_time(lens: Lens) -> Iterator[list[int]]:
    """Plan as if hardly anything fitted into memory, while the block runs.

    Yields:
        The sizes of the batches that the model runs, a list that grows.
    """
    rows = []
    run = lens.adapter.run
    predict = lens.adapter.predict

    def count_rows(inputs: Any) -> torch.Tensor:
        tensors = [
            value for value in inputs.values() if isinstance(value, torch.Tensor)
        ]
        rows.append(len(tensors[0]))
        return run(inputs)

    def count_series(part: SeriesBatch, *rest: Any) -> Any:
        rows.append(len(part))
        return predict(part, *rest)

    with ExitStack() as patches:
        # each of these modules has the function under a global name of its own
        for module in ("models.batching", "models.recording", "ablation.engine"):
            name = f"tsfm_lens.{module}.fitting"
            patches.enter_context(mock.patch(name, return_value=1))
        patches.enter_context(mock.patch.object(lens.adapter, "run", count_rows))
        patches.enter_context(mock.patch.object(lens.adapter, "predict", count_series))
        yield rows


def _assert_same(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Assert that two results are equal up to rounding.

    Variables that are rounding themselves are left out.
    """
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name in set(found) - ROUNDING:
        actual = found[name].values
        wanted = expected[name].values
        if actual.dtype.kind == "f":
            assert_close(
                actual, wanted, depth=DEPTH, dtype=torch.float32, what=str(name)
            )
        else:
            assert np.array_equal(actual, wanted), f"{name}: {actual} != {wanted}"


def _assert_same_statements(found: xr.Dataset, expected: xr.Dataset) -> None:
    """Assert that sizes and tests of all tested effects are equal."""
    for effect in estimated_effects(expected):
        for part in STATEMENTS:
            name = f"{effect}_{part}"
            actual, wanted = (
                result[name].values.astype(float) for result in (found, expected)
            )
            # p-values and marks are at most 1, sizes may be anything
            largest = max(1.0, float(np.abs(np.nan_to_num(wanted)).max(initial=0.0)))
            assert_close(
                actual,
                wanted,
                depth=DEPTH,
                magnitude=largest,
                dtype=torch.float32,
                what=name,
            )

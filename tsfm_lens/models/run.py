"""Run: one forecast of a model, recorded once, for all probes, figures and pages.

Read :class:`Run` first, and :func:`run`, which is ``lens.run``. A run holds the
forecast, the path that single passes follow, recorded activations, and the runs that
differ from it in one setting. Probes and figures attach themselves to it from their own
modules; none is known here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import add_method, extensible, public_attributes
from tsfm_lens.core.io import name_write_errors, replacing
from tsfm_lens.data import SeriesBatch, as_series, shift_phase
from tsfm_lens.data.batch import Item, hold_out, item_rows
from tsfm_lens.hooks.activations import Activations, TokenSpans
from tsfm_lens.hooks.names import get_name
from tsfm_lens.hooks.recorder import at_positions
from tsfm_lens.hooks.tl_names import refuse_logits
from tsfm_lens.models.adapter import default_horizon
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.arguments import check_covariates, checked_request, is_count
from tsfm_lens.models.base import check_unknown
from tsfm_lens.models.batching import memory_limit
from tsfm_lens.models.conditions import Conditions
from tsfm_lens.models.forecast import (
    Forecast,
    checked_values,
    context_dataset,
    over_steps,
)
from tsfm_lens.models.lens import READING, Lens
from tsfm_lens.models.recording import Capture, select_names
from tsfm_lens.models.twins import QUICK, make_twin
from tsfm_lens.models.unread import short_notes, unread_notes

# of the memory that a run may take, the share for its recordings
_RECORD_SHARE = 0.25
_SMALL = 2**26  # bytes of a model whose twins are kept


@extensible
@dataclass(frozen=True, eq=False)
class Run:
    """Forecast of a batch by a model, with the model's activations.

    All of it is computed on first use and then shared.

    A run is of the model as it was when the run was made. It refuses to go on under
    other hooks, and after a change of weights, as far as
    :class:`tsfm_lens.models.conditions.Conditions` sees one.

    Attributes:
        lens: the model.
        batch: the context.
        horizon: forecast steps.
        truth: (series, step) values after the context, NaN where unknown; None if
            nothing is known.
        num_samples: sample paths of a sampling model; its configured number if None.
        seed: of every draw.
        rollout: whether probes see all passes of the library's own rollout, or a single
            forward over the whole horizon.
        forced_path: (series, step) values that teacher-force a token model's decoder;
            the median path if None.
        full_batch: the series before their ends were held out as the truth; None if
            they were not.
        explicit_horizon: whether the caller chose the horizon.
        original: the run that this one is an untrained twin of; None for others.
        n_twins: number of untrained twins that effects are compared with, see
            :meth:`twin`; None if not requested, ``QUICK`` for as many as a claim takes
            where :data:`tsfm_lens.core.estimates.TWIN_WORK` allows it.
        cache: results of probes that they share with one another.
        cost: seconds spent so far on the "forecast", the "path" and "recordings".
    """

    lens: Lens
    batch: SeriesBatch
    horizon: int
    truth: np.ndarray | None = None
    num_samples: int | None = None
    seed: int = 0
    rollout: bool = False
    forced_path: np.ndarray | None = None
    full_batch: SeriesBatch | None = None
    explicit_horizon: bool = True
    n_twins: int | None = None
    original: Run | None = None
    _conditions: Conditions | None = None
    _of: tuple[Run, list[int]] | None = None
    _variants: dict[Hashable, Run] = field(init=False, default_factory=dict)
    _records: list[Activations] = field(init=False, default_factory=list)
    cache: dict[Hashable, Any] = field(init=False, default_factory=dict)
    cost: dict[str, float] = field(init=False, default_factory=dict)
    if TYPE_CHECKING:
        plot: ClassVar[Callable[..., Any]]
        without: ClassVar[Callable[..., xr.Dataset]]
        attribute: ClassVar[Callable[..., xr.Dataset]]
        measure: ClassVar[Callable[..., xr.Dataset]]
        report: ClassVar[Callable[..., Path]]
        explain: ClassVar[Callable[..., dict[str, xr.Dataset]]]
        explore: ClassVar[Callable[..., Any]]
        what_if: ClassVar[Callable[..., xr.Dataset]]
    else:
        __getattr__ = refuse_logits

    def __post_init__(self) -> None:
        if self._conditions is None or self._conditions.lens is not self.lens:
            object.__setattr__(self, "_conditions", Conditions(self.lens))

    def __repr__(self) -> str:
        truth = "" if self.truth is None else ", truth known"
        return (
            f"Run({self.lens.model_id!r}, {len(self.batch)} series, {self.horizon}"
            f" steps{truth}, seed {self.seed})"
        )

    def __dir__(self) -> list[str]:
        return public_attributes(super().__dir__())

    # --- forecast

    @cached_property
    def forecast(self) -> Forecast:
        """Forecast by the library's own code."""
        if self._of is not None:
            run, rows = self._of
            return run.forecast.of_rows(rows, self.batch)
        if "forecast" in self.cache:
            return cast(Forecast, self.cache["forecast"])
        self.check_unchanged()
        with self._clock("forecast"):
            return self.lens.forecast(
                self.batch, self.horizon, num_samples=self.num_samples, seed=self.seed
            )

    @cached_property
    def path(self) -> np.ndarray:
        """Values that a token model's decoder reads as its own past, (series, step).

        For other models it is the median forecast.
        """
        if not self.tokens_read:
            return self.forecast.median
        if self.forced_path is not None:
            return self.forced_path
        if self._of is not None:
            run, rows = self._of
            return run.path[rows]
        # the input of a run is the same inside a block that changes the model
        with self.conditions.restored(), self._clock("path"):
            return self.lens.median_path(self.batch, self.horizon)

    @property
    def tokens_read(self) -> bool:
        """True if the model reads its own past values as tokens.

        A single forward then follows a path.
        """
        return self.lens.adapter.readout == "token"

    @cached_property
    def encoded(self) -> Encoded:
        """Native input of the single forward over the whole horizon.

        Raises:
            InputError: one pass of the model does not cover the horizon.
        """
        limit = self.lens.adapter.longest_pass
        if self.horizon > limit:
            raise InputError(
                f"horizon {self.horizon} cannot be explained in one pass:"
                f" {self.lens.model_id} forecasts at most {limit} steps before it feeds"
                " its forecast back. Choose a horizon from 1 to that."
            )
        if self.tokens_read:
            return self.lens.encode(self.batch, future=self.path)
        return self.lens.encode(self.batch, horizon=self.horizon)

    @cached_property
    def tokens(self) -> Tensor | None:
        """Token ids of :attr:`path` for token models, (series, step), else None."""
        if not self.tokens_read:
            return None
        adapter: Any = self.lens.adapter
        ids: Tensor = adapter.tokenize(torch.as_tensor(self.path), self.encoded)
        return ids

    @cached_property
    def spans(self) -> dict[str, TokenSpans]:
        """Time steps that the tokens of each stack cover, by stack.

        They are those of a single forward, or of the first pass of a rollout.
        """
        if not self.rollout:
            return self.encoded.spans
        first = min(self.horizon, self.lens.adapter.longest_pass)
        if self.lens.adapter.readout == "token":
            return self.lens.encode(
                self.batch, future=np.zeros((len(self.batch), first))
            ).spans
        return self.lens.encode(self.batch, horizon=first).spans

    @property
    def first_step(self) -> int:
        """First forecast step that averages over steps include.

        It is 1 where a decoder reads a start token at its first of more than 2 steps,
        else 0.
        """
        return int(self.tokens_read and self.horizon > 2)

    @property
    def statistic(self) -> str:
        """Name of the statistic in :attr:`point`.

        It is "median", "mean" or "expected value".
        """
        if self.rollout:
            return "median"
        return {"token": "expected value", "distribution": "mean"}.get(
            self.lens.adapter.readout, "median"
        )

    @cached_property
    def point(self) -> np.ndarray:
        """Forecast in one value per step, (series, step).

        Variants of the model are compared with it.
        """
        if self.rollout:
            return self.forecast.median
        if "point" in self.cache:
            return cast(np.ndarray, self.cache["point"])
        self.check_unchanged()
        return self._forward(())[0]

    def _forward(
        self, names: Sequence[str], last: int | None = None
    ) -> tuple[np.ndarray, Activations]:
        """Run the single forward once.

        Returns:
            The point forecast, and the activations at the hook points.
        """
        encoded = self.encoded
        names = select_names(self.lens, names, None) if names else []
        if last is None:
            reduce = None
        else:
            reduce = at_positions(self.lens.registry.points, names, (-last, None))
        capture = Capture(self.lens, self.batch, names, reduce)
        with torch.no_grad(), self._clock("recordings"):
            output, activations = capture.forward(encoded, self.read)
            return output.cpu().double().numpy(), activations

    def read(self, output: Tensor, part: Encoded | None = None) -> Tensor:
        """Read point forecasts in data units out of a forward; differentiable.

        The forward is of the whole batch, or of a part of it.

        Args:
            output: (…, series, step, vocabulary) logits, or (…, series, quantile,
                step).
            part: the part of the batch that it belongs to.

        Returns:
            (…, series, step): the expected value over the value tokens, the quantile
            nearest to 0.5, or the mean of a distribution head.

        Example:
            >>> run.read(lens.forward(run.encoded)).shape
            torch.Size([1, 12])
        """
        adapter = self.lens.adapter
        # a sum over thousands of values keeps nothing in half precision
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        if adapter.readout == "token":
            first: int = adapter.first_value_token  # type: ignore[attr-defined]
            values = adapter.values(self.encoded if part is None else part)
            value_bins = values[:, None, first:].to(output)
            # among the value tokens alone, whose share may be too small to be divided
            # by
            mass = torch.softmax(output[..., first:], dim=-1)
            return (mass * value_bins).sum(-1)[..., : self.horizon]
        middle = int(np.argmin(np.abs(np.array(adapter.levels) - 0.5)))
        return output[..., middle, : self.horizon]

    @property
    def work(self) -> int:
        """Forwards that the model has made so far, times its parameters.

        Forwards of all runs of the lens count.
        """
        parameters = sum(
            parameter.numel() for parameter in self.lens.adapter.model.parameters()
        )
        result: int = parameters * self.lens.registry.state.forwards
        return result

    # --- activations

    def record(self, names: Iterable[str], last: int | None = None) -> Activations:
        """Return activations at these hook points, and possibly at more.

        They are those of the single forward, or of every pass of a rollout.

        With ``last``, a single forward made for this keeps so many last positions and
        queries alone.

        Args:
            names: names or globs of hook points.
            last: number of last positions and queries that a forward made for this
                keeps; all if None.

        Returns:
            The activations, by name.

        Raises:
            UnknownNameError: no such hook point.
            InputError: one pass of the model does not cover the horizon; the run was
                made under other hooks or weights.

        Example:
            >>> acts = run.record(["decoder_blocks.*.hook_resid_post"])
            >>> acts["decoder_blocks.2.hook_resid_post"].shape[-1] == lens.d_model
            True
        """
        requested = {get_name(name) for name in names}
        wrong = [name for name in requested if not isinstance(name, str)]
        if wrong:
            raise InputError(
                f"{wrong[0]!r} names no hook point; expected a name or glob,"
                " lens.hook_table() lists them"
            )
        if not requested:
            raise InputError(
                "no hook point is given to record; lens.hook_table() lists them"
            )
        known = self.find_record(requested)
        if known is not None:
            return known
        self.check_unchanged()
        if self.rollout:
            options: dict[str, Any] = {
                "horizon": self.horizon,
                "num_samples": self.num_samples,
                "seed": self.seed,
            }
            with torch.no_grad(), self._clock("recordings"):
                output, activations = self.lens.run_with_cache(
                    self.batch, names_filter=sorted(requested), rollout=True, **options
                )
        else:
            output, activations = self._forward(sorted(requested), last)
        # the recording's own output, which then needs no forward of its own
        self.cache.setdefault("forecast" if self.rollout else "point", output)
        if last is None:
            self._keep(activations)
        return activations

    def find_record(self, names: Iterable[str]) -> Activations | None:
        """Return recorded activations if that takes no further forward.

        Args:
            names: names or globs of hook points.

        Returns:
            The activations that :meth:`record` would return, or None if they would have
            to be computed.

        Example:
            >>> unused = lens.run(run.batch, 12)
            >>> unused.find_record(["decoder_blocks.0.hook_resid_pre"]) is None
            True
        """
        if not self._records:
            return None
        requested = set(names)
        holding = [
            activations
            for activations in self._records
            if requested <= activations.recorded.keys()
        ]
        if not self.rollout:
            # a forward that looks into attention runs another kernel
            holding = [
                activations
                for activations in holding
                if self._reads_attention(activations)
                == self._reads_attention(requested)
            ]
        if holding:
            return holding[0]
        return None

    def _reads_attention(self, names: Iterable[str]) -> bool:
        """Return whether some of the names are hook points inside attention."""
        points = self.lens.registry.points
        return any(
            points[name].how not in ("site", "result")
            for name in names
            if name in points
        )

    @contextmanager
    def _clock(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.cost[part] = self.cost.get(part, 0.0) + time.perf_counter() - began

    def _keep(self, activations: Activations) -> None:
        limit = _RECORD_SHARE * memory_limit(self.lens.device)
        self._records.insert(0, activations)
        # the oldest go first; what does not fit by itself is not kept at all
        while self._records and sum(record.nbytes for record in self._records) > limit:
            self._records.pop()

    @property
    def conditions(self) -> Conditions:
        """Hooks, weights, mode and precision of the lens when the run was made."""
        assert self._conditions is not None
        return self._conditions

    def check_unchanged(self) -> None:
        """Refuse to run the lens under other conditions than those of the run.

        See :class:`Conditions`.

        Example:
            >>> run.check_unchanged()
        """
        self.conditions.check_unchanged()

    # --- other runs

    def following(self, forced_path: Any) -> Run:
        """Return the same run with its decoder teacher-forced by given values.

        The forecast is shared.

        Args:
            forced_path: values (series, step) in data units.

        Returns:
            The run whose single forward reads these values.

        Raises:
            InputError: a value is missing, or the values have another shape.

        Example:
            >>> forced = run.following(run.truth)
            >>> forced.forecast is run.forecast
            True
        """
        values = checked_values(
            forced_path, (len(self.batch), self.horizon), "forced_path"
        )
        if not np.isfinite(values).all():
            raise InputError(
                "forced_path holds values that are no numbers; teacher forcing needs"
                " finite values"
            )
        return replace(
            self, forced_path=values, _of=(self, list(range(len(self.batch))))
        )

    def as_rollout(self) -> Run:
        """Return the same run in the library's own rollout.

        Returns:
            The run, all passes of which probes see.

        Example:
            >>> run.as_rollout().rollout
            True
        """
        if self.rollout:
            return self
        return self._variant(rollout=True)

    def in_one_pass(self) -> Run:
        """Return the same run in one forward over the whole horizon.

        Returns:
            The run, whose probes see a single forward.

        Example:
            >>> run.in_one_pass().rollout
            False
        """
        if self.rollout:
            return self._variant(rollout=False)
        return self

    def redraw(self) -> Run:
        """Return the same run under the next seed, made once.

        It has draws and a forecast of its own.

        Returns:
            The run under ``seed + 1``.

        Example:
            >>> run.redraw().seed - run.seed
            1
        """
        return self._variant(
            seed=self.seed + 1,
            _of=None if self._of is None else (self._of[0].redraw(), self._of[1]),
        )

    def alone(self) -> Run:
        """Return the same run without twins.

        Returns:
            The run, which compares its effects with nothing.

        Example:
            >>> run.alone().n_twins or 0
            0
        """
        if self.n_twins:
            return self._variant(n_twins=0)
        return self

    def compared(self) -> Run:
        """Return the same run, with untrained twins unless their number was chosen.

        There are as many as a claim takes, where they are little work.

        Returns:
            The run with a number of twins.

        Example:
            >>> run.compared().forecast is run.forecast
            True
        """
        if self.n_twins is None:
            return self._variant(n_twins=QUICK)
        return self

    def twin(self, number: int) -> Run:
        """Return the same run of an untrained twin of the model.

        Of every five twins four have the model's own weights in random order, and one
        has new ones. It is kept where the model is small.

        Args:
            number: of the twin, from 0.

        Returns:
            The run of the twin, on the same series.

        Example:
            >>> run.twin(0).original is run
            True
        """
        key = ("twin", number)
        if key in self._variants:
            return self._variants[key]
        lens = make_twin(self.lens, number)
        twin = replace(
            self, lens=lens, forced_path=None, n_twins=0, original=self, _of=None
        )
        weights = lens.adapter.model.parameters()
        if sum(weight.nbytes for weight in weights) < _SMALL:
            self._variants[key] = twin
        return twin

    def _variant(self, **changes: Any) -> Run:
        """Return a run that differs in one field, made once.

        Its forecast is that of this run, unless ``_of`` is among the changes.
        """
        key: Hashable = next(iter(changes))
        if "n_twins" in changes:
            key = next(iter(changes.items()))
        if key not in self._variants:
            every_row = list(range(len(self.batch)))
            self._variants[key] = replace(self, **{"_of": (self, every_row), **changes})
        return self._variants[key]

    def select(self, which: str | int | Sequence[str | int]) -> Run:
        """Return the same run of some of its series, by ids or positions.

        Their forecast and path are those of this run.

        An item whose series the model reads together, such as a target and its
        covariates, comes as a whole, whether one of its series is named or the item.

        Args:
            which: id, group or position of a series, or several of them.

        Returns:
            The run of these series.

        Example:
            >>> run.select("co2").batch.ids
            ('co2',)
        """
        rows = self.batch.rows(which)
        if self.lens.adapter.multivariate and self.batch.multivariate:
            members = self.batch.rows_by_group()
            rows = [
                row
                for item in dict.fromkeys(self.batch.groups[row] for row in rows)
                for row in members[item]
            ]
        if rows == list(range(len(self.batch))):
            return self
        truth, forced_path = (
            None if values is None else values[rows]
            for values in (self.truth, self.forced_path)
        )
        if self.full_batch is None:
            full = None
        else:
            full = self.full_batch.select(rows)
        if self.original is None:
            original = None
        else:
            original = self.original.select(rows)
        return replace(
            self,
            batch=self.batch.select(rows),
            truth=truth,
            forced_path=forced_path,
            full_batch=full,
            original=original,
            _of=(self, rows),
        )

    def item(self, item: Item = None) -> Run:
        """Select one item: one series, or the variates that the model reads together.

        Args:
            item: its position, its group's name or the id of one of its series; None
                for the one that there is.

        Returns:
            The run of the item.

        Raises:
            InputError: none is chosen of several, or there is no such position.
            UnknownNameError: no item has this name.

        Example:
            >>> run.item(0).batch.ids
            ('co2',)
        """
        return self.select(item_rows(self.batch, item))

    def season(self) -> int:
        """Return the steps of the first series' season.

        Returns:
            Steps of a season.

        Raises:
            InputError: it has none.

        Example:
            >>> run.season()
            12
        """
        season = self.batch.seasonalities[0]
        if season < 2:
            raise InputError(
                f"series {self.batch.ids[0]!r} has no season, at which attention could"
                " be counted or which could be shifted"
            )
        return season

    def shifted_pair(self) -> tuple[Run, Run]:
        """Return two runs that differ in the phase of their season.

        Returns:
            The run of these series without gaps, and that of the same with their season
            half a period later.

        Example:
            >>> plain, shifted = run.shifted_pair()
            >>> plain.batch.ids == shifted.batch.ids
            True
        """
        gapless = []
        for values, levels in zip(
            self.batch.values, self.batch.categories, strict=True
        ):
            series = pd.Series(values)
            if levels is None:
                filled = series.interpolate(limit_direction="both")
            else:
                # between two categories there is none
                filled = series.ffill().bfill()
            gapless.append(filled.to_numpy())
        clean = replace(self.batch, values=tuple(gapless))
        late = shift_phase(clean, self.season() // 2)
        settings: dict[str, Any] = {"num_samples": self.num_samples, "seed": self.seed}
        clean_run, late_run = (
            self.lens.run(batch, self.horizon, **settings) for batch in (clean, late)
        )
        return clean_run, late_run

    def shift_attrs(self) -> dict[str, int]:
        """Return the settings of :meth:`shifted_pair`.

        Returns:
            Steps of the shift and of the season, and the number of gaps filled, by
            name.

        Example:
            >>> run.shift_attrs()["season"]
            12
        """
        missing = sum(int(np.isnan(values).sum()) for values in self.batch.values)
        season = self.season()
        return {
            "shifted_by": season // 2,
            "season": season,
            "missing_steps_filled": missing,
        }

    def within_pass(self) -> Run:
        """Return this run over at most one pass of the model.

        It is for measurements that stand beside a longer rollout.

        Returns:
            The run; this run itself if one pass covers it.

        Example:
            >>> run.within_pass() is run
            True
        """
        return self.at(min(self.horizon, self.lens.adapter.longest_pass))

    def at(self, horizon: int) -> Run:
        """Return a run of the same series over another horizon, made once.

        The truth is held out anew, or cut.

        Args:
            horizon: forecast steps.

        Returns:
            The run, whose forecast is computed when it is first used.

        Raises:
            InputError: a series is too short, or the horizon is not a number of steps.

        Example:
            >>> run.at(6).forecast.median.shape
            (1, 6)
        """
        if horizon == self.horizon:
            return self
        if horizon not in self._variants:
            settings: dict[str, Any] = {
                "num_samples": self.num_samples,
                "seed": self.seed,
            }
            if self.rollout and self.horizon <= self.lens.adapter.longest_pass:
                rollout = True
            else:
                rollout = None
            if self.full_batch is not None:
                other = self.lens.run(
                    self.full_batch, horizon, holdout=True, rollout=rollout, **settings
                )
            else:
                if self.truth is None:
                    truth = None
                else:
                    truth = over_steps(self.truth, horizon)
                other = self.lens.run(
                    self.batch, horizon, truth=truth, rollout=rollout, **settings
                )
            if self.original is None:
                original = None
            else:
                original = self.original.at(horizon)
            other = replace(other, original=original)
            self._variants[horizon] = replace(
                other, explicit_horizon=self.explicit_horizon, n_twins=self.n_twins
            )
        return self._variants[horizon]

    def shortened(self, horizon: int) -> Run:
        """Return a run of the same context over at most ``horizon`` steps.

        Args:
            horizon: most forecast steps.

        Returns:
            The run; this run itself if it is no longer.

        Example:
            >>> run.shortened(24) is run
            True
        """
        if horizon >= self.horizon:
            return self
        return replace(self, full_batch=None).at(horizon)

    # --- results

    def dataset(self) -> xr.Dataset:
        """Return the dataset that all results share.

        It holds the context, the truth, their times, units, groups and variates.

        Returns:
            Dataset over ``series``, ``time`` and ``step``, in data units.

        Raises:
            InputError: the weights of the model have changed since the run was made, or
                its mode or precision.

        Example:
            >>> run.dataset()["series"].values.tolist()
            ['co2']
        """
        self.conditions.check_same_model()
        return self._context.copy(deep=True)

    @cached_property
    def _context(self) -> xr.Dataset:
        return context_dataset(self.batch, self.horizon, self.truth)

    def to_dataset(self) -> xr.Dataset:
        """Return the whole run as a dataset.

        Returns:
            Dataset with series, truth, forecast, path, settings, provenance and cost.

        Example:
            >>> "quantile" in run.to_dataset().dims
            True
        """
        batch = self.batch
        data = self.forecast.to_dataset(self.truth)
        data["mean"] = (("series", "step"), self.forecast.mean)
        if self.tokens_read:
            data["path"] = (("series", "step"), self.path)
        if self.horizon <= self.lens.adapter.longest_pass or self.rollout:
            data["point"] = (("series", "step"), self.point)
        starts = [
            start.isoformat() if start is not None else "" for start in batch.starts
        ]
        data = data.assign_coords(
            start=("series", starts),
            freq=("series", [freq or "" for freq in batch.freqs]),
        )
        cost = {
            f"seconds_{part}": round(seconds, 3) for part, seconds in self.cost.items()
        }
        title = f"Forecast of {len(batch)} series over {self.horizon} steps"
        attrs = self.describe("run", title, "tsfm-lens: one forecast, recorded once")
        data.attrs = {
            **attrs,
            "rollout": int(self.rollout),
            "statistic": self.statistic,
            **cost,
        }
        return data

    def to_netcdf(self, path: str | Path) -> Path:
        """Write the run to one file, which ``xarray.open_dataset`` reads.

        Args:
            path: of the file, ending in .nc.

        Returns:
            The path of the file.

        Raises:
            InputError: the file cannot be written; one that was there stays as it was.

        Example:
            >>> xr.open_dataset(run.to_netcdf(folder / "run.nc")).sizes["series"]
            1
        """
        target = Path(path)
        data = self.to_dataset()
        # netCDF 3 has neither 64-bit integers nor timestamps of its own
        timestamps = ("context_timestamp", "forecast_timestamp")
        data = data.drop_vars([name for name in timestamps if name in data.coords])
        with name_write_errors(target), replacing(target) as part:
            data.to_netcdf(part, engine="scipy")
        return target

    def describe(
        self, kind: str, title: str, source: str, **parameters: object
    ) -> dict[str, object]:
        """Return the attributes of a result.

        Args:
            kind: of the result, such as "attribution".
            title: of the result.
            source: paper or definition that the result follows.
            parameters: what the probe was called with.

        Returns:
            Kind, title, source, provenance, settings and parameters, by name.

        Example:
            >>> run.describe("jump", "First jumps", "")["kind"]
            'jump'
        """
        adapter = self.lens.adapter
        metadata: dict[str, object] = {"seed": self.seed, "horizon": self.horizon}
        if adapter.readout != "quantile":
            metadata["num_samples"] = self.num_samples or "the model's own"
        if adapter.readout == "distribution" and not self.rollout:
            metadata["statistic"] = "mean"
        return {
            "kind": kind,
            "title": title,
            "source": source,
            **self.lens.provenance(),
            **metadata,
            **parameters,
        }


@add_method("Lens")
def run(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    future: Any = None,
    truth: Any = None,
    holdout: bool = False,
    windows: int = 1,
    forced_path: Any = None,
    rollout: bool | None = None,
    num_samples: int | None = None,
    seed: int = 0,
    twins: int | None = None,
    **columns: Any,
) -> Run:
    """Make a run: a forecast that is computed once and shared by all probes.

    It is computed on first use.

    Args:
        lens: the model.
        series: anything that :func:`tsfm_lens.data.as_series` takes; at most its end is
            the context.
        horizon: forecast steps; the model's own if None, fewer where the end of a short
            series is held out.
        future: a frame of the covariates that are known beforehand; see
            :func:`tsfm_lens.data.as_series`.
        truth: (series, step) values after the context, NaN where unknown.
        holdout: hold out the last ``horizon`` steps of every series as the truth.
        windows: forecast origins of each series, ``horizon`` steps apart, the latest
            first. What follows an earlier origin is its truth. Tests count series, and
            windows where there is one series.
        forced_path: (series, step) values for teacher forcing of a token model's
            decoder; the median path if None.
        rollout: True for all passes of the library's own rollout. False for one forward
            over the whole horizon, in which a token model gives the expected value.
            None: one forward if that covers it.
        num_samples: sample paths of a sampling model; its configured number if None.
        seed: of every draw.
        twins: number of untrained twins to compare effects with; each takes as long as
            the probe itself. 24 are enough to claim that an effect is learned. If None,
            reports take 24 where a result takes at most 10⁹ parameters × forwards,
            whatever the machine.
        columns: further arguments of :func:`tsfm_lens.data.as_series`, such as
            ``targets``, ``known``, ``past``.

    Returns:
        The run; nothing is computed before it is asked for.

    Raises:
        InputError: a wrong argument, a series too short to hold its end out, or ends
            without any value.

    Example:
        >>> made = lens.run(tsfm_lens.bundled("co2"), 12, holdout=True, num_samples=4)
        >>> made.forecast.median.shape, made.truth.shape
        ((1, 12), (1, 12))
    """
    check_unknown(
        columns.keys() - {*READING}, "run", [*READING, "holdout", "truth", "windows"]
    )
    batch = as_series(series, future=future, **columns)
    full_batch = None
    adapter = lens.adapter
    check_covariates(adapter.architecture, adapter.covariates, batch)
    requested = horizon
    if horizon is None and holdout:
        requested = adapter.prediction_length
    elif horizon is None:
        requested = default_horizon(adapter, batch)
    steps, _ = checked_request(requested, (0.5,), num_samples, seed)
    if rollout not in (None, True, False):
        raise InputError(f"rollout is {rollout!r}, expected True, False or None")
    if not is_count(windows) or not (twins is None or twins == 0 or is_count(twins)):
        raise InputError(
            f"windows={windows!r}, twins={twins!r}: expected whole numbers, of windows"
            " 1 or more"
        )
    if not isinstance(holdout, bool | np.bool_):
        raise InputError(
            f"holdout={holdout!r}: expected True or False; how many steps are held out"
            " is horizon=…, from how many origins is windows=…"
        )
    if holdout:
        if truth is not None:
            raise InputError(
                "give either truth=… or holdout=True, which takes the truth from the"
                " series' ends"
            )
        if horizon is None:
            # as much context as truth at least
            shortest = min(batch.lengths)
            spare = max(shortest - adapter.context_length, shortest // (1 + windows))
            steps = max(1, min(steps, spare))
        full_batch = batch.windows(windows, steps, steps)
        batch, truth = hold_out(full_batch, steps)
    elif windows > 1:
        if truth is None:
            latest = np.full((len(batch), steps), np.nan)
        else:
            latest = checked_values(truth, (len(batch), steps))
        earlier = [
            batch.split(number * steps)[1][:, :steps] for number in range(1, windows)
        ]
        batch = batch.windows(windows, steps)
        truth = np.concatenate([latest, *earlier])
    batch = batch.noted([*unread_notes(adapter, batch), *short_notes(batch, steps)])
    if max(batch.lengths) > adapter.context_length:
        batch = adapter.with_level_numbers(batch).tail(adapter.context_length)
    values = None
    if truth is not None:
        values = checked_values(truth, (len(batch), steps))
        if not np.isfinite(values[batch.is_target]).any():
            values = None
    if rollout is None:
        rollout = steps > adapter.longest_pass
    made = Run(
        lens,
        batch,
        steps,
        values,
        num_samples,
        seed,
        rollout,
        full_batch=full_batch,
        explicit_horizon=horizon is not None,
        n_twins=twins,
    )
    if forced_path is None:
        return made
    return made.following(forced_path)

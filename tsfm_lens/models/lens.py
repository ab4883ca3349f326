"""Lens: a native model with hook points.

Read :class:`Lens` first, the class that ``load`` returns. It adds what needs whole
forecasts: recordings, ablations and patches. Hook points, single forwards and the
readout are in its base class, :class:`tsfm_lens.models.base.LensBase`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import extensible
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component, flat_names
from tsfm_lens.hooks.interventions import PatchFrom, Rows
from tsfm_lens.hooks.native import widest_float
from tsfm_lens.hooks.recorder import NamesFilter, Reducer, at_positions, by_row
from tsfm_lens.models.ablating import knock_outs
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import OF_A_FORECAST, HookList, LensBase, check_unknown
from tsfm_lens.models.batching import check_request, forecast_in_parts
from tsfm_lens.models.devices import checked_device
from tsfm_lens.models.embedding import embed_batch, embedding_stack
from tsfm_lens.models.forecast import Forecast, check_finite
from tsfm_lens.models.recording import Capture, check_recordable, select_names
from tsfm_lens.models.unread import unread_notes

# from the signature of ``as_series``, so that a new argument there is taken here, too
READING = [name for name in signature(as_series).parameters if name != "data"]
"""Names of the arguments of ``as_series`` after the series, such as ``targets``.

``forecast`` and ``run`` take the same arguments and pass them on.
"""


@extensible
class Lens(LensBase):
    """Time-series foundation model behind TransformerLens's interface.

    The native model runs its own code and is never edited; ``lens.native`` is the
    library's own pipeline and stays usable. Hooks act on everything that runs inside
    their context, calls of the native pipeline too. They act in the order in which the
    model passes their hook points; hooks at the same point act in the order in which
    their contexts were entered. A context acts in the thread and asyncio task that
    opened it, and in tasks that are started inside it; what ``add_hook`` sets acts
    everywhere. An error is raised, when the context is entered or left, for a hook that
    cannot act: its module is compiled or replaced, the model never passed its point or
    ran in another thread or task only, or gradients are checkpointed.

    Args:
        adapter: the opened native model.
        model_id: name of the loaded model, for provenance.
        revision: commit of a hub checkpoint, if known.
        files: files of weights that it was opened from, with those of a merged adapter
            at the end; empty if it was made from a native object.
    """

    # methods that packages above this one attach (see ``extensible``)
    if TYPE_CHECKING:
        run: ClassVar[Callable[..., Any]]
        quick_check: ClassVar[Callable[..., Any]]

    def forecast(
        self,
        series: Any,
        horizon: int | None = None,
        *,
        quantiles: Sequence[float] | None = None,
        num_samples: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        **columns: Any,
    ) -> Forecast:
        """Run the library's own forecast, in data units, with all hooks that are set.

        The forecast has a row for every series of the batch, covariates too. The row of
        a covariate has what the model emits for it, or NaN if it emits nothing;
        ``forecast.targets()`` selects the rows of the targets.

        A large batch runs in parts, which changes results by rounding alone. Sample
        paths are drawn in blocks of 64 series, each under a seed derived from ``seed``.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes.
            horizon: steps to forecast; the model's own prediction length if None.
            quantiles: levels between 0 and 1, in any order, which the forecast keeps.
                If None, they are the deciles, or the model's own levels if these do not
                reach from 0.1 to 0.9.
            num_samples: sample paths of a sampling model; its configured number if
                None.
            seed: seed of torch's generators for this call alone; the global state is
                left as it was.
            batch_size: largest number of series in a native call, and in a block of
                draws instead of 64.
            progress: called with the number of series done and that of all series.
            columns: further arguments of :func:`tsfm_lens.data.as_series`, such as
                ``targets``, ``known``, ``future``.

        Returns:
            The forecast: ``quantiles`` (series, quantile, step), ``median`` and
            ``mean`` (series, step), ``samples`` (series, sample, step) of a sampling
            model, in data units.

        Raises:
            InputError: a wrong argument, or a forecast that is not finite or runs out
                of memory.

        Example:
            >>> forecast = lens.forecast(tsfm_lens.bundled("co2"), 12, num_samples=4)
            >>> forecast.median.shape, forecast.samples.shape
            ((1, 12), (1, 4, 12))
        """
        if columns:
            check_unknown(
                columns.keys() - {*READING}, "forecast", [*OF_A_FORECAST, *READING]
            )
            series = as_series(series, **columns)
        request = check_request(
            self, series, horizon, quantiles, num_samples, seed, batch_size
        )
        forecast = forecast_in_parts(request, progress)
        check_finite(forecast, self.wiring.architecture)
        # a batch of ``lens.run`` may hold these notes already, written before the run
        # cut its context
        known = set(request.batch.notes)
        notes = [
            note
            for note in unread_notes(self.adapter, request.batch)
            if note not in known
        ]
        if notes:
            return replace(forecast, context=forecast.context.noted(notes))
        return forecast

    def embed(
        self,
        series: Any,
        layer: int | None = None,
        *,
        stack: str | None = None,
        pool: str | None = None,
        **columns: Any,
    ) -> pd.DataFrame:
        """Return the vector of every token of series, with the times that it covers.

        Hooks that are set act on it. Padding is left out. Of files larger than memory,
        :func:`tsfm_lens.sweep.write_embeddings` makes the same.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes.
            layer: the residual stream after this layer; -1 for the embedding, before
                the first one. None for what leaves the stack, after its last norm, as
                the Chronos pipelines' own ``embed`` gives it.
            stack: of a model that has several, by name. By default the encoder, which
                reads the series, and the last one where it has levels.
            pool: "mean", "max", "first" or "last": one vector of each series, over its
                tokens that are not special. None for all tokens.
            columns: further arguments of :func:`tsfm_lens.data.as_series`, such as
                ``targets`` or ``known``.

        Returns:
            A frame with a row for each token, and the columns ``id``, ``group`` and
            ``variate`` of items with several variates, ``role`` beside covariates,
            ``token`` (counted from the first of the series), ``start`` and ``end``,
            ``special`` and ``vector``, (d_model,) in float32. A token covers the steps
            from ``start`` up to ``end``, which is the first step after it: timestamps
            where the series have them, else steps counted from the first value.
            ``special`` is "" for a token of the series, else its kind, such as "REG",
            "EOS", or "FORECAST" where it stands for steps to come. Pooled frames have
            no ``token`` and no ``special``. ``attrs`` has the origin.

        Raises:
            UnknownNameError: no such stack or way of pooling.
            InputError: no such layer, or a series without a token to pool.

        Example:
            >>> frame = lens.embed(tsfm_lens.bundled("nile"), layer=1, pool="mean")
            >>> frame["id"].tolist(), frame["vector"][0].shape
            (['nile'], (96,))
        """
        check_unknown(columns, "call of embed", ["layer", "stack", "pool", *READING])
        if isinstance(series, SeriesBatch) and not columns:
            batch = series
        else:
            batch = as_series(series, **columns)
        embeddings = embed_batch(self, batch, layer, stack, pool)
        frame = embeddings.to_frame()
        attrs: dict[str, Any] = {
            **self.provenance(),
            "layer": layer,
            "stack": embedding_stack(self.wiring, stack).name,
            "pool": pool,
            "notes": [*batch.notes, *embeddings.notes],
        }
        frame.attrs.update(attrs)
        return frame

    def run_with_hooks(
        self,
        series: Any,
        fwd_hooks: HookList = (),
        bwd_hooks: HookList = (),
        *,
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
        rollout: bool = False,
        **run: Any,
    ) -> Tensor | Forecast:
        """Run the model once with hooks.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes, or an encoded
                batch.
            fwd_hooks: pairs of a name, a glob or a predicate of hook points, and a
                function of the activation and the hook point, which may return a new
                activation.
            bwd_hooks: such pairs, whose functions take the gradient.
            reset_hooks_end: True; other values are refused, since hooks leave with the
                call.
            clear_contexts: whether the contexts of hook points are cleared at the end.
            rollout: run a whole forecast in place of one forward.
            run: further arguments of :meth:`forward`, such as ``horizon``, or of
                :meth:`forecast`.

        Returns:
            The output of the forward, logits or quantiles in data units; with
            ``rollout`` a :class:`Forecast`.

        Raises:
            UnknownNameError: a name matches no hook point.
            HookError: a hook point was never passed.

        Example:
            >>> name = "decoder_blocks.0.hook_resid_pre"
            >>> double = (name, lambda stream, hook: 2 * stream)
            >>> output = lens.run_with_hooks(run.encoded, fwd_hooks=[double])
            >>> bool((output != lens.forward(run.encoded)).any())
            True
        """
        check_unknown(run, "forecast" if rollout else "forward")
        with self.hooks(fwd_hooks, bwd_hooks, reset_hooks_end, clear_contexts):
            if rollout:
                return self.forecast(series, **run)
            return self.forward(series, **run)

    def run_with_cache(
        self,
        series: Any,
        *,
        names_filter: NamesFilter = None,
        rollout: bool = False,
        device: torch.device | str | None = None,
        reduce: Reducer | Mapping[str, Reducer] | None = None,
        incl_bwd: bool = False,
        loss: Callable[[Tensor], Tensor] | None = None,
        remove_batch_dim: bool = False,
        pos_slice: Any = None,
        **run: Any,
    ) -> tuple[Any, Activations]:
        """Run once and keep activations; a large batch runs in parts.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes, or an encoded
                batch.
            names_filter: names or globs of hook points, or a predicate. None keeps all
                but the large ``hook_result``.
            rollout: run a whole forecast; activations then have a leading axis
                ``step``.
            device: where to keep activations; where they are computed if None.
            reduce: function that is applied to each activation before it is stored, or
                a mapping from names or globs of hook points to such functions.
            incl_bwd: also run backward and keep gradients under ``name + "_grad"``.
            loss: function of the output whose scalar is differentiated; needed with
                ``incl_bwd``.
            remove_batch_dim: drop the axis "batch", which must have one row.
            pos_slice: positions to keep, of attention patterns those of the queries: an
                index, (start, stop) or a list.
            run: further arguments of :meth:`forward`, such as ``stop_at_layer``, or of
                :meth:`forecast`. If ``horizon`` is given without ``future`` or
                ``tokens``, the decoder of a token model reads its own median forecast.

        Returns:
            The output (a :class:`Forecast` for rollouts) and the activations.

        Raises:
            UnknownNameError: a name matches no hook point.
            InputError: gradients are asked for without a scalar loss, of a rollout, in
                inference mode, or of a model whose backward pass is not the derivative;
                a rollout is asked of a model that runs twice per forecast;
                ``pos_slice`` and ``reduce`` are both given; or there is too little
                memory.

        Example:
            >>> name = "decoder_blocks.0.cross_attn.hook_pattern"
            >>> output, cache = lens.run_with_cache(run.encoded, names_filter=name)
            >>> cache.axes(name)
            ('batch', 'head', 'query', 'key')
        """
        check_unknown(run, "forecast" if rollout else "forward")
        check_recordable(self, rollout, incl_bwd, loss)
        if device is not None:
            device = checked_device(device)
        if pos_slice is not None and reduce is not None:
            raise InputError(
                "pos_slice and reduce exclude each other; let the reducer take the"
                " positions"
            )
        stop = run.pop("stop_at_layer", None)
        names = select_names(self, names_filter, stop)
        if pos_slice is None:
            reducer = reduce
        else:
            reducer = at_positions(self.registry.points, names, pos_slice)
        if isinstance(series, Encoded):
            batch = series.batch
        else:
            batch = as_series(series)
        capture = Capture(
            self,
            batch,
            names,
            reducer,
            device,
            loss if incl_bwd else None,
            rollout,
            stop,
        )
        output: Any
        if rollout:
            output, activations = capture.forecast_recorded(**run)
        else:
            remark = ""
            if isinstance(series, Encoded):
                encoded = series
            else:
                has_inputs = bool(run.keys() & {"future", "tokens"})
                if self.emits == "token" and not has_inputs:
                    # the decoder of a token model reads what it has forecast so far
                    if run.get("horizon") is not None:
                        run["future"] = self.median_path(batch, run["horizon"])
                    else:
                        remark = (
                            "; its decoder read the start token alone, give horizon=…"
                            " to follow the forecast"
                        )
                encoded = self.encode(batch, **run)
            output, activations = capture.forward(encoded)
            activations.remark = remark
        if remove_batch_dim:
            return output, activations.remove_batch_dim()
        return output, activations

    def median_path(self, batch: SeriesBatch, horizon: int) -> np.ndarray:
        """Forecast with a token model, each step by its median.

        The median is that of the distribution of the next value, given the path so far.

        Args:
            batch: the series.
            horizon: steps to forecast.

        Returns:
            Values in data units, (series, step).

        Example:
            >>> lens.median_path(tsfm_lens.bundled("nile"), 3).shape
            (1, 3)
        """
        first: int = self.adapter.first_value_token  # type: ignore[attr-defined]

        @by_row
        def choose_median(logits: Tensor, hook: Any) -> Tensor:
            # in half precision, sums over thousands of bins are too coarse to find
            # where they pass one half. Special tokens have no value and do not count.
            values = logits[..., first:].to(widest_float(logits.device))
            mass = torch.softmax(values, dim=-1).cumsum(-1)
            # rounding may keep the sum over all bins, which is the last, from being 1
            median = first + (mass < 0.5 * mass[..., -1:]).sum(-1, keepdim=True)
            # a quarter of the lowest number leaves room for a temperature below 1, by
            # which the library divides logits
            lowest = torch.finfo(logits.dtype).min / 4
            return torch.full_like(logits, lowest).scatter(-1, median, 0.0)

        # the library can only draw tokens: the hook leaves one with any probability
        with self.hooks([("unembed.hook_out", choose_median)]):
            forecast = self.forecast(batch, horizon, num_samples=1)
        # every token model has sample paths
        assert forecast.samples is not None
        return forecast.samples[:, 0].astype(float)

    def ablate(
        self,
        *components: str | Component,
        how: str = "zero",
        reference: Any = None,
        rows: Rows = None,
        positions: Rows = None,
        horizon: int | None = None,
        **options: Any,
    ) -> Block[Lens]:
        """Ablate components in everything that runs inside the block.

        Args:
            components: names or globs, or a list of them.
            how: "zero", "mean", "resample" or "noise".
            reference: for mean and resample: activations, or series on whose forecasts
                they are recorded.
            rows: series to change; all if None.
            positions: token positions to change; all if None.
            horizon: horizon of the forecasts on which reference series are recorded;
                the model's own if None. Give the horizon of the ablated forecasts,
                since the tokens of some models depend on it.
            options: further fields of the intervention, e.g. ``per="pooled"``,
                ``seed=1``, ``scale=0.5``; InputError for one that it does not have.

        Returns:
            A block that yields the lens.

        Raises:
            UnknownNameError: a name matches no component.
            InputError: an option that the intervention does not have, or no reference
                where one is needed.

        Example:
            >>> with lens.ablate("decoder.*.cross_attn.*"):
            ...     changed = lens.forecast(run.batch, 12, num_samples=4)
            >>> bool((changed.median != run.forecast.median).any())
            True
        """
        options |= {"rows": rows, "positions": positions}
        return self.edit(
            *knock_outs(self, components, how, reference, horizon, **options)
        )

    def patch(
        self,
        source: Activations,
        *targets: str | Component,
        rows: Rows = None,
        positions: Rows = None,
    ) -> Block[Lens]:
        """Replace activations at the targets by those of another run.

        This holds for everything that runs inside the block.

        Args:
            source: activations of the other run, as :meth:`run_with_cache` returns
                them.
            targets: names or globs of components or hook points, or a list of them.
            rows: series to change; all if None.
            positions: token positions to change; all if None.

        Returns:
            A block that yields the lens.

        Raises:
            UnknownNameError: a target matches no component or hook point.

        Example:
            >>> _, stored = lens.run_with_cache(corrupted.encoded)
            >>> with lens.patch(stored, "decoder.1.mlp"):
            ...     output = lens.forward(run.encoded)
            >>> bool((output != lens.forward(run.encoded)).any())
            True
        """
        return self.edit(
            *(
                PatchFrom(target, source, rows, positions)
                for target in flat_names(targets)
            )
        )

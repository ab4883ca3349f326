"""Lens: a native model with hook points."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformer_lens.hook_points import LensHandle

from tsfm_lens.data import as_series
from tsfm_lens.data.values import to_floats
from tsfm_lens.errors import HookError, InputError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.edit import edited
from tsfm_lens.hooks.interventions import Intervention, PatchFrom, Rows
from tsfm_lens.hooks.registry import HookRegistry, attach_point
from tsfm_lens.hooks.stopping import stream_into
from tsfm_lens.models.ablating import knock_outs
from tsfm_lens.models.adapter import Adapter, covered, refuse_dtype
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.base import LensBase
from tsfm_lens.models.batching import forecast_in_parts, request_of
from tsfm_lens.models.forecast import Forecast, is_count, refuse_non_finite, refuse_overflow
from tsfm_lens.models.hooked import Hooked
from tsfm_lens.registry import extensible

Lasting = list[tuple[str, str, LensHandle]]


@extensible
class Lens(LensBase, Hooked):
    """Time-series foundation model behind TransformerLens's interface.

    The native model runs its own code and is never edited; ``lens.native`` is the library's own pipeline
    and stays usable. Hooks act on everything that runs inside their context: ``lens.forward``,
    ``lens.forecast`` with its whole rollout, and calls of the native pipeline itself. They act in the order in which
    the model passes their hook points, however contexts are nested, and at one point in the order of entry. A context
    acts in the thread and asyncio task that opened it, and in tasks that are started inside it; what ``add_hook`` sets
    acts everywhere. A run while a generator waits at a ``yield`` inside a context is refused, since its purpose
    is unclear. Seeded forecasts of several threads run one after the other. A hook that cannot act raises when
    its context is entered or left: compiled or replaced modules, a point never passed, a run in another thread or task
    only, gradient checkpointing. An interrupt leaves no hook behind, whenever it comes.

    Args:
        adapter: the opened native model.
        model_id: name of the loaded model, for provenance.
        revision: commit of a hub checkpoint, if known.
    """

    def __init__(self, adapter: Adapter, model_id: str, revision: str | None = None) -> None:
        super().__init__()
        # kept out of torch's module registry: TransformerLens's setup() writes a name onto every submodule
        self.__dict__["adapter"] = adapter
        self.model_id = model_id
        self.revision = revision
        self.__dict__["registry"] = HookRegistry(adapter.model, adapter.wiring)
        for name, point in self.registry.hooked.items():
            attach_point(self, name, point)
        self.setup()
        self.adapter.model.eval()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.adapter, self.model_id, self.revision, self._lasting_hooks())

    def __deepcopy__(self, memo: dict[int, Any]) -> Lens:
        hooks = self._lasting_hooks()
        for module in self.adapter.model.modules():
            # some libraries keep functions as attributes in a wrapping that cannot be copied, and need not be
            memo |= {id(value): value for value in vars(module).values() if isinstance(value, staticmethod)}
        return _rebuilt(type(self), copy.deepcopy(self.adapter, memo), self.model_id, self.revision, hooks)

    def _lasting_hooks(self) -> Lasting:
        """Return the hooks set by ``add_hook``, as (name of the point, "fwd" or "bwd", handle)."""
        if self.registry.busy:
            raise HookError("a context is open on this lens, and its hooks would stay on a copy; leave it first")
        points = self.registry.hooked.items()
        forward = [(name, "fwd", handle) for name, point in points for handle in point.fwd_hooks]
        return forward + [(name, "bwd", handle) for name, point in points for handle in point.bwd_hooks]

    def __repr__(self) -> str:
        stacks = ", ".join(f"{s.name or 'blocks'}: {s.n_layers} layers × {s.n_heads} heads" for s in self.wiring.stacks)
        return f"Lens({self.model_id!r}, {self.wiring.architecture}; {stacks}, d_model {self.d_model})"

    def to(self, *args: Any, **kwargs: Any) -> Lens:
        """Move the native model; InputError for a precision that the library does not run in."""
        refuse_dtype(self.adapter, *args, *kwargs.values())
        self.adapter.model.to(*args, **kwargs)
        return self

    # --- running -------------------------------------------------------------------------------------

    def encode(
        self, series: Any, *, future: Any = None, tokens: Tensor | None = None, horizon: int | None = None
    ) -> Encoded:
        """Encode series as the native model takes them.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes.
            future: (series, step) values after the context, to teacher-force a token model's decoder.
            tokens: (series, step) token ids for the same purpose.
            horizon: forecast steps of the one forward; the model's own if None. Models whose pass always
                yields the same number of steps yield them all.

        Raises:
            InputError: the future has another shape, one pass cannot yield the horizon, or a scale overflows.
        """
        horizon = covered(self.adapter, batch := as_series(series), horizon)
        values = None if future is None else torch.as_tensor(to_floats(future, "the future"))
        ids = None if tokens is None else torch.as_tensor(to_floats(tokens, "the array of tokens"))
        for array in (values, ids):
            if array is not None and self.adapter.readout != "token":
                raise InputError(
                    f"{self.wiring.architecture} takes no future values in a single forward; leave `future` out"
                )
            if array is not None and (array.ndim != 2 or len(array) != len(batch)):
                raise InputError(
                    f"future values have shape {tuple(array.shape)}, expected (series, step) with {len(batch)} series"
                )
        if horizon is not None and not (is_count(horizon) and horizon <= self.adapter.longest_pass):
            raise InputError(
                f"horizon {horizon!r} of a single forward; one pass of {self.wiring.architecture} yields 1 to "
                f"{self.adapter.longest_pass} steps, lens.forecast goes on beyond"
            )
        options = {"future": values, "tokens": ids} if self.adapter.readout == "token" else {}
        encoded = self.adapter.encode(batch, horizon=None if horizon is None else int(horizon), **options)
        refuse_overflow(encoded)
        return encoded

    def forward(
        self,
        series: Any,
        *,
        future: Any = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
        stop_at_layer: int | str | Component | None = None,
    ) -> Tensor:
        """Run one differentiable forward.

        Args:
            series: see :meth:`encode`; an :class:`Encoded` batch is taken as it is.
            future, tokens, horizon: see :meth:`encode`.
            stop_at_layer: do not run this layer and later ones: an index in the stack that is read out, from
                its end if below 0, or a layer by name ("encoder.1").

        Returns:
            Token models: logits (series, step, vocabulary). Patch models: quantiles in data units
            (series, quantile, step); models with a distribution head: its mean, with a single quantile entry.
            With ``stop_at_layer`` the stream that enters it, (row, pos, d_model).

        Raises:
            UnknownNameError: no such layer.
        """
        if not isinstance(series, Encoded):
            series = self.encode(series, future=future, tokens=tokens, horizon=horizon)
        with self.running(len(series.rows), series.place), self.registry.attach():
            if stop_at_layer is not None:
                return stream_into(self.registry, stop_at_layer, lambda: self.adapter.run(series.inputs))
            return self.adapter.run(series.inputs)

    def forecast(
        self,
        series: Any,
        horizon: int | None = None,
        *,
        quantiles: Sequence[float] | None = None,
        num_samples: int | None = None,
        seed: int = 0,
        batch_size: int | None = None,
        memory: int | str | None = None,
    ) -> Forecast:
        """Run the library's own forecast, in data units, with all hooks that are set.

        A batch that does not fit in the memory runs in parts, which moves results by rounding alone. Blocks of 64
        series draw their paths under seeds of their own.

        Args:
            series: anything that :func:`tsfm_lens.data.as_series` takes.
            horizon: steps; the model's own prediction length if None.
            quantiles: levels between 0 and 1; if None the deciles, or the model's own levels where those end before.
            num_samples: sample paths of a sampling model; its configured number if None.
            seed: of torch's generators for this call alone; the global state is left as it was.
            batch_size: most series per native call and per block of draws.
            memory: bytes for which parts are planned, or "2GB"; ``TSFM_LENS_MEMORY`` if None, else half of what is
                free. At least one item runs at a time.

        Raises:
            InputError: a wrong argument, or a forecast that is not finite or runs out of memory.
        """
        request = request_of(self, series, horizon, quantiles, num_samples, seed, batch_size, memory)
        forecast = forecast_in_parts(request)
        refuse_non_finite(forecast, self.wiring.architecture)
        return forecast

    # --- interventions -----------------------------------------------------------------------------------

    def edit(self, *interventions: Intervention) -> Block[Lens]:
        """Apply interventions, in the order given, to everything that runs inside the block.

        Raises:
            UnknownNameError: a target does not exist; nothing has been hooked by then.
        """
        return edited(self.registry, interventions, self)

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
        """Knock components out of everything that runs inside the block.

        Args:
            components: names or globs.
            how: "zero", "mean", "resample" or "noise".
            reference: for mean and resample: activations, or series on whose forecasts they are recorded.
            rows: series to change; all if None.
            positions: token positions to change; all if None.
            horizon: of the forecasts along which reference series are recorded; the model's own if None. Give that of
                the forecast to come: a model that reads places of the future has other tokens at another horizon.
            options: further fields of the intervention, e.g. ``per="pooled"``, ``seed=1``, ``scale=0.5``.
        """
        interventions = knock_outs(self, components, how, reference, rows, positions, horizon, **options)
        return self.edit(*interventions)

    def patch(
        self,
        source: Activations,
        *targets: str | Component,
        rows: Rows = None,
        positions: Rows = None,
    ) -> Block[Lens]:
        """Replace activations at the targets by another run's, in everything that runs inside the block."""
        return self.edit(*(PatchFrom(target, source, rows, positions) for target in targets))


def _rebuilt(kind: type[Lens], adapter: Adapter, model_id: str, revision: str | None, hooks: Lasting) -> Lens:
    """Build a lens around a copied or unpickled model, with hooks of its own points."""
    lens = kind(adapter, model_id, revision)
    for name, direction, handle in hooks:
        lens.registry.hooked[name].add_hook(handle.user_hook, direction, handle.is_permanent)
    return lens

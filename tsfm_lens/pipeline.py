"""From a lens and series to everything a report shows: the road that ``tsfm-lens report`` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens
    from tsfm_lens.models.run import Run

Progress = Callable[[str, int, int], None]

# of the series with the attention maps and the linked view: one is enough to see which head looks where
_ATTENTION_SERIES = 0
_BUNDLED = "bundled:"


def analyse(run: Run, *, progress: Progress | None = None) -> dict[str, xr.Dataset]:
    """Forecast, logit lens, gain per layer, attribution, ablation, attention, and the heads one at a time.

    Args:
        run: what every chapter looks at; at most one pass of the model.
        progress: called as (name of the step, done, total) before, within and after each step.

    Returns:
        Labelled results by name, in the order of a report. Without a truth the gain is measured against
        the model's own forecast.

    Raises:
        InputError: one pass does not cover the horizon.
    """
    from tsfm_lens import probes

    results: dict[str, xr.Dataset] = {}
    one = run.select([_ATTENTION_SERIES])

    def told(name: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(name, done, total)

    reference = "model" if run.truth is None else "truth"
    work: dict[str, Callable[[], xr.Dataset]] = {
        "forecast": lambda: run.forecast.to_dataset(run.truth),
        "logit_lens": lambda: probes.logit_lens(run),
        "layer_gain": lambda: probes.layer_gain(results["logit_lens"], reference=reference),
        "attribution": lambda: probes.attribute(run),
        "ablation": lambda: probes.ablation_effects(run, progress=told("ablation")),
    }
    for stack, kind in _maps(run.lens):
        work[f"attention_{kind}"] = partial(probes.attention_patterns, one, kind=kind, stack=stack)
    if _maps(run.lens):
        work["explore"] = lambda: probes.head_states(one, progress=told("explore"))
    for name, compute in work.items():
        told(name)(0, 1)
        results[name] = compute()
        told(name)(1, 1)
    return results


def report(
    run: Run,
    out: str | Path,
    *,
    title: str | None = None,
    sources: Sequence[str] = (),
    progress: Progress | None = None,
) -> Path:
    """Analyse a run and write one HTML file that opens offline.

    Args:
        run: what every chapter looks at; at most one pass of the model.
        out: folder for index.html.
        title: of the report; the model's and the series' names if None.
        sources: where the series come from, in words or as ``bundled:NAME``.
        progress: see :func:`analyse`.

    Returns:
        The file.

    Raises:
        InputError: one pass does not cover the horizon.
    """
    from tsfm_lens.report import build_report

    results = analyse(run, progress=progress)
    ids = run.batch.ids
    heading = title or f"{run.lens.model_id} on {', '.join(ids[:4])}{' …' if len(ids) > 4 else ''}"
    told = progress or (lambda _name, _done, _total: None)
    told("report", 0, 1)
    path = build_report(results, out, title=heading, provenance=provenance(run, sources))
    told("report", 1, 1)
    return path


def steps_of(lens: Lens) -> list[str]:
    """Names of the steps of :func:`report`, in order."""
    fixed = ["forecast", "logit_lens", "layer_gain", "attribution", "ablation"]
    maps = [f"attention_{kind}" for _, kind in _maps(lens)]
    return [*fixed, *maps, *(["explore"] if maps else []), "report"]


def _maps(lens: Lens) -> list[tuple[str, str]]:
    """Stack and kind of the attention that is shown: all of the stack that is read out."""
    stack = lens.wiring.output_stack
    found = dict.fromkeys((stack.name, kind) for kind in stack.attention_kinds())
    # one decoder token attends to itself alone, which shows nothing
    single = stack.name == "decoder" and lens.adapter.readout == "quantile"
    # attention between variates has no time axis, and one series has nobody to attend to
    in_time = {row.kind for layer in range(stack.n_layers) for row in stack.attentions(layer) if row.over == "time"}
    return [(name, kind) for name, kind in found if kind in in_time and not (single and kind == "self_attn")]


def provenance(run: Run, sources: Sequence[str]) -> dict[str, str]:
    """What the head of a report says about where its numbers come from, in the order shown."""
    from tsfm_lens.data import bundled_info

    lines = {key: str(value) for key, value in run.lens.provenance().items() if value}
    known = [bundled_info(name) for name in bundled_in(sources)]
    lines["data"] = "; ".join(sources)
    if known:
        lines["series"] = "; ".join(f"{info.name}: {info.title} ({info.source}; {info.licence})" for info in known)
    lines["context"] = f"up to {max(run.batch.lengths)} steps of each series"
    lines["horizon"] = f"{run.horizon} steps, " + (
        "beyond the end of each series" if run.truth is None else "held out as the truth"
    )
    lines["seed"] = str(run.seed)
    lines["date"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return lines


def read_sources(sources: Sequence[str], **reading: Any) -> SeriesBatch:
    """Series of files and of ``bundled:NAME[,NAME…]``, as one batch.

    Args:
        sources: paths and names.
        reading: options of :func:`tsfm_lens.data.read_series`, for all files.

    Raises:
        InputError: a file cannot be read, ``bundled:`` names nothing, or there are options and no file.
        UnknownNameError: there is no bundled series of a name.
    """
    from tsfm_lens.data import SeriesBatch, bundled, bundled_names, read_series

    batches = []
    if reading and all(source.startswith(_BUNDLED) for source in sources):
        name, value = next(iter(reading.items()))
        raise InputError(f"{name}={value!r} says how to read a file, and there is none")
    for source in sources:
        if not source.startswith(_BUNDLED):
            batches.append(read_series(source, **reading))
            continue
        names = bundled_in([source])
        if not names:
            raise InputError(f"{source!r} names no series: bundled:NAME[,NAME…], from {', '.join(bundled_names())}")
        batches.append(bundled(*names))
    return batches[0] if len(batches) == 1 else SeriesBatch.concat(batches)


def bundled_in(sources: Sequence[str]) -> list[str]:
    """Names of the bundled series that ``bundled:NAME[,NAME…]`` asks for; none of what is no such word."""
    from tsfm_lens.data import bundled_names

    asked = [source.removeprefix(_BUNDLED) for source in sources if source.startswith(_BUNDLED)]
    names = [name.strip() for text in asked for name in text.split(",") if name.strip()]
    return [found for name in names for found in (bundled_names() if name == "all" else (name,))]


def hook_shapes(lens: Lens, pattern: str = "**") -> list[tuple[str, str, tuple[int, ...]]]:
    """Hook points that match a glob: name, axes, and the shape that a run on one short series gives.

    Raises:
        UnknownNameError: nothing matches; the message has the nearest names.
    """
    import torch

    from tsfm_lens.data import as_series
    from tsfm_lens.hooks.names import select

    wanted = select(lens.registry.points, pattern)
    context, horizon = min(64, lens.adapter.context_length), min(8, lens.adapter.prediction_length)
    own = getattr(lens.adapter, "example", None)
    series = as_series(np.sin(np.arange(context) * (2 * np.pi / 12))) if own is None else own(0, context)
    # a token model's decoder needs values to run along
    future = np.zeros((1, horizon)) if lens.adapter.readout == "token" else None
    with torch.no_grad():
        _, acts = lens.run_with_cache(series, names_filter=wanted, future=future)
    shapes = {name: tuple(acts[name].shape) for name in wanted}
    return [(name, axes, shapes[name]) for name, axes in lens.hook_table() if name in shapes]


def as_plain(result: xr.Dataset) -> dict[str, Any]:
    """A labelled result as JSON-able values: attributes, coordinates, variables; missing values are None."""
    plain = result.to_dict(data="array")
    parts = {
        group: {
            str(name): {"dims": list(entry["dims"]), "data": _plain(np.asarray(entry["data"]))}
            for name, entry in plain[group].items()
        }
        for group in ("coords", "data_vars")
    }
    attrs = {str(key): _plain(np.asarray(value)) for key, value in result.attrs.items()}
    return {"attrs": attrs, "dims": {str(k): int(v) for k, v in result.sizes.items()}, **parts}


def _plain(array: np.ndarray) -> Any:
    """Nested lists; NaN, infinity and NaT become None."""
    if array.ndim:
        return [_plain(part) for part in array]
    item = array.item()
    if array.dtype.kind == "M":
        return None if np.isnat(array) else str(array.astype("datetime64[s]"))
    if array.dtype.kind == "f":
        # a float32 is written with the digits it has
        return float(str(array)) if np.isfinite(item) else None
    return item

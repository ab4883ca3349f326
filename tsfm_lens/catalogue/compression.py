"""Compression of a model: size against error, and forecasts before and after."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.computing import Compute, Options, Work
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import frame
from tsfm_lens.viz import compressed_forecasts, size_and_error
from tsfm_lens.viz.compress import WORDS
from tsfm_lens.viz.select import array, names

_COLUMNS = ("parameters", "rank_ratio", "factor_ratio", "mase_rise", "mase_rise_low", "mase_rise_high", "wql_rise")
KEEPS = (0.1, 0.25, 0.5)
_PANELS = 4


def read_curve(ds: xr.Dataset) -> list[str]:
    """State which point to take and why, and whether the methods differ at one size."""
    out = [str(ds.attrs["why"])]
    methods = names(ds, "method")
    if "svd" not in methods or len(methods) == 1:
        return out
    high, low = (array(ds, f"mase_rise_{end}", "method", "keep") for end in ("high", "low"))
    plain = methods.index("svd")
    for index, method in enumerate(methods):
        if index != plain:
            apart = [
                f"{float(keep):g}" for at, keep in enumerate(names(ds, "keep")) if high[index, at] < low[plain, at]
            ]
            at_shares = f" where {', '.join(apart)} is kept" if apart else " at no share tried"
            out.append(f"Clearly below plain truncation is {WORDS.get(method, method)}{at_shares}.")
    if not np.isfinite(high).any():
        out.append("There are too few series for intervals.")
    return out


def _plates(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(size_and_error(ds), frame(ds, *(name for name in _COLUMNS if name in ds)), read_curve(ds))


def _curve(work: Work, options: Options) -> xr.Dataset:
    from tsfm_lens.compress import calibration_run, pareto

    run = work.run
    return pareto(run, calibration_run(run), **{"keeps": KEEPS, "methods": ("svd", "weighted"), **options})


def read_quality(ds: xr.Dataset) -> list[str]:
    """State by how much the errors rise, and for how many series."""
    rise = array(ds, "mase_rise", "series")
    finite = np.isfinite(rise)
    if not finite.any():
        return ["The errors cannot be told: no truth, or a series without seasonal error."]
    mean, low, high = (100 * float(ds[f"mase_rise_{end}"]) for end in ("estimate", "low", "high"))
    ends = f" ({low:+.2g} to {high:+.2g}, 95 % interval over series)" if np.isfinite([low, high]).all() else ""
    out = [
        f"MASE changes by {mean:+.2g} %{ends}; it falls for {(rise < 0).sum()} of {finite.sum()} series.",
    ]
    if "overlap" in ds:
        out.append(f"Of the ten likeliest tokens the two models share {100 * float(ds['overlap']):.3g} % (Jaccard).")
    return out


def _forecasts(ds: xr.Dataset) -> Iterator[Plate]:
    for first in range(0, ds.sizes["series"], _PANELS):
        part = ds.isel(series=slice(first, first + _PANELS))
        yield Plate(compressed_forecasts(part), frame(part, "mase", "wql"), read_quality(ds) if not first else [])


def _quality(work: Work, options: Options) -> xr.Dataset:
    from tsfm_lens.compress import calibration_run, compressed, quality

    smaller, _ = compressed(calibration_run(work.run), **{"keep": 0.25, **options})
    return quality(work.run, smaller)


MEASUREMENTS = (
    Measurement(
        kind="compression",
        theme="Causes",
        about="size against error of models of lower rank, by method and share kept",
        heading="What compression costs",
        guide="Matrices of the attentions are cut off to lower ranks and held as two factors where that is smaller; "
        "forecasts of the whole and of the smaller model are compared series by series.",
        compute=Compute("", "compress.pareto on all series", _curve),
        plates=_plates,
        figures=(Figure("size_and_error", "Error over what is left of a model, by method of compression."),),
        source="after Flow of ranks, section 5 and table 2",
        paper=("S0-TSVD", "S0-METR", "S0-SCHED", "S0-GUIDE", "S0-T2"),
    ),
    Measurement(
        kind="compression_quality",
        theme="Causes",
        about="forecasts before and after compression, with errors paired by series",
        heading="Forecasts of a smaller model",
        guide="The attentions keep a quarter of their rank, spread over matrices by what each does to the forecast.",
        compute=Compute("", "compress.quality of a model at a quarter of the rank", _quality),
        plates=_forecasts,
        figures=(Figure("compressed_forecasts", "Forecasts before and after compression."),),
        source="after Flow of ranks, section 5 and table 2",
    ),
)

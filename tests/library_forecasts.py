"""Every library called by hand on a batch of series, for the tiny lenses that must
answer like it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Forecast, Lens, architectures
from tsfm_lens.models.wirings.moirai_2 import LIBRARY

LEVELS = tuple(level / 10 for level in range(1, 10))
DRAWS = 3


class Answer(NamedTuple):
    """Quantiles (series, quantile, step), and what the library returns beside them, if
    anything.
    """

    quantiles: np.ndarray
    mean: np.ndarray | None = None
    samples: np.ndarray | None = None


def answer(lens: Lens, batch: SeriesBatch, horizon: int, seed: int) -> Answer:
    """The library's own forecast under a seed."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return NATIVE[lens.wiring.architecture](lens.native, batch, horizon)


def count_draws(lens: Lens) -> dict[str, int]:
    """The number of sample paths that the libraries draw here."""
    if lens.emits == "quantile":
        return {}
    return {"num_samples": DRAWS}


def assert_is(ours: Forecast, theirs: Answer) -> None:
    """To the last bit."""
    for name, expected in theirs._asdict().items():
        if expected is not None:
            np.testing.assert_array_equal(getattr(ours, name), expected)


# --- series as the libraries take them
# -------------------------------------------------------------------------


def items(batch: SeriesBatch) -> list[np.ndarray]:
    """(variate, time) each."""
    return [
        np.stack(
            [v for v, g in zip(batch.values, batch.groups, strict=True) if g == group]
        )
        for group in dict.fromkeys(batch.groups)
    ]


def tensors(batch: SeriesBatch) -> list[torch.Tensor]:
    """(time,) of a single variate, (variate, time) of several."""
    return [torch.tensor(item[0] if len(item) == 1 else item) for item in items(batch)]


def stacked(batch: SeriesBatch, length: int) -> torch.Tensor:
    """(item, variate, time): the last steps, NaN on the left of what is shorter."""
    last = [item[:, -length:] for item in items(batch)]
    wide = [
        np.pad(item, ((0, 0), (length - item.shape[1], 0)), constant_values=np.nan)
        for item in last
    ]
    return torch.tensor(np.stack(wide), dtype=torch.float32)


def row_wise(batch: SeriesBatch, length: int) -> torch.Tensor:
    """(series, time): the last steps of each series alone, NaN on the left of what is
    shorter.
    """
    rows = [
        np.pad(
            values[-length:], (max(length - len(values), 0), 0), constant_values=np.nan
        )
        for values in batch.values
    ]
    return torch.tensor(np.stack(rows), dtype=torch.float32)


def whole_patches(batch: SeriesBatch, limit: int, patch: int) -> int:
    return -(-min(max(batch.lengths), limit) // patch) * patch


def interpolated(series: np.ndarray) -> np.ndarray:
    known = np.flatnonzero(~np.isnan(series))
    return np.interp(np.arange(len(series)), known, series[known])[known[0] :]


# --- the libraries
# --------------------------------------------------------------------------------------


def chronos(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    if type(native).__name__ == "ChronosPipeline":
        sampled = {"num_samples": DRAWS}
    else:
        sampled = {}
    quantiles, mean = native.predict_quantiles(
        [torch.tensor(series) for series in batch.values],
        prediction_length=horizon,
        quantile_levels=list(LEVELS),
        **sampled,
    )
    return Answer(quantiles.transpose(1, 2).numpy(), mean.numpy())


chronos_bolt = chronos


def chronos_2(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    quantiles, mean = native.predict_quantiles(
        tensors(batch), prediction_length=horizon, quantile_levels=list(LEVELS)
    )
    return Answer(torch.cat(quantiles).transpose(1, 2).numpy(), torch.cat(mean).numpy())


def t5(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    ids = row_wise(batch, min(max(batch.lengths), 512))
    generated = native.generate(
        input_ids=ids.nan_to_num(0.0).long(),
        attention_mask=(~ids.isnan()).long(),
        do_sample=True,
        min_new_tokens=horizon,
        max_new_tokens=horizon,
        num_return_sequences=DRAWS,
    )
    samples = generated[:, 1:].reshape(len(batch), DRAWS, horizon).float()
    return of_samples(samples)


def of_samples(samples: torch.Tensor) -> Answer:
    """(series, sample, step)."""
    quantiles = torch.quantile(samples, torch.tensor(LEVELS), dim=1).transpose(0, 1)
    return Answer(quantiles.numpy(), samples.mean(dim=1).numpy(), samples.numpy())


def moirai(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    return of_samples(
        torch.from_numpy(
            gluonts(native, batch, horizon, patch_size=16, num_samples=DRAWS)
        )
    )


def moirai_2(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    return Answer(gluonts(native, batch, horizon))


def moirai_forecaster(
    module: Any, series: list[np.ndarray], horizon: int, **settings: Any
) -> Any:
    """uni2ts's forecast object for items (variate, time)."""
    name = type(module).__name__.removesuffix("Module")
    library = LIBRARY.require(f"uni2ts.model.{name.lower()}")
    return getattr(library, f"{name}Forecast")(
        module=module,
        prediction_length=horizon,
        target_dim=len(series[0]),
        context_length=min(max(item.shape[1] for item in series), 4096),
        feat_dynamic_real_dim=0,
        past_feat_dynamic_real_dim=0,
        **settings,
    )


def gluonts(
    module: Any, batch: SeriesBatch, horizon: int, **settings: Any
) -> np.ndarray:
    """(series, sample or quantile, step) of uni2ts's own predictor."""
    from gluonts.dataset.common import ListDataset

    series = items(batch)
    single = len(series[0]) == 1
    entries = [
        {"target": item[0] if single else item, "start": "2024-01-01 00:00"}
        for item in series
    ]
    forecaster = moirai_forecaster(module, series, horizon, **settings)
    predictor = forecaster.create_predictor(batch_size=len(series), device="cpu")
    found = predictor.predict(ListDataset(entries, freq="h", one_dim_target=single))
    return by_series(
        [entry.samples if settings else entry.forecast_array for entry in found]
    )


def by_series(arrays: list[np.ndarray]) -> np.ndarray:
    """(sample or quantile, step[, variate]) an item to (series, sample or quantile,
    step).
    """
    wide = np.stack(
        [array if array.ndim == 3 else array[..., None] for array in arrays]
    )
    return np.ascontiguousarray(wide.transpose(0, 3, 1, 2)).reshape(
        -1, *wide.shape[1:3]
    )


def compiled(
    native: Any, context: int, horizon: int, count: int, **changes: Any
) -> Any:
    """TimesFM's forecaster under the smallest configuration in which series and horizon
    fit, or one with changes.
    """
    import timesfm

    steps = -(-horizon // 16) * 16
    settings = {
        "max_context": min(-(-context // 8) * 8, (2048 - steps) // 8 * 8),
        "max_horizon": steps,
        "normalize_inputs": True,
        "use_continuous_quantile_head": steps <= 32,
        "force_flip_invariance": False,
        "infer_is_positive": True,
        "fix_quantile_crossing": True,
        "per_core_batch_size": count,
    }
    model = copy.copy(native)
    model.compile(timesfm.ForecastConfig(**{**settings, **changes}))
    return model


def timesfm_2p5(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    model = compiled(native, max(batch.lengths), horizon, len(batch))
    _, deciles = model.forecast(
        horizon=horizon, inputs=[series.copy() for series in batch.values]
    )
    return Answer(deciles[..., 1:].transpose(0, 2, 1), deciles[..., 0])


def timesfm_2p5_transformers(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    length = whole_patches(batch, 512, 8)
    past = [
        torch.tensor(interpolated(series), dtype=torch.float32)
        for series in batch.values
    ]
    output = native(
        past,
        forecast_context_len=length,
        force_flip_invariance=False,
        truncate_negative=False,
    )
    values = output.full_predictions[:, :horizon]
    for row, series in zip(values, past, strict=True):
        if (series[-length:] >= 0).all():
            row.clamp_(min=0.0)
    return Answer(values[..., 1:].transpose(1, 2).numpy(), values[..., 0].numpy())


def timesfm_3(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    target = stacked(batch, whole_patches(batch, 16384, 8))
    emitted = native.decode(
        target.nan_to_num(0.0), horizon=horizon, target_mask=target.isnan()
    )
    return Answer(emitted.flatten(0, 1).transpose(1, 2).numpy())


def masked(batch: SeriesBatch, covariates_ahead: int = 0) -> Any:
    """Toto's own form of series."""
    from toto.data.util.dataset import MaskedTimeseries

    values = stacked(batch, min(max(batch.lengths), 4096))
    zeros = torch.zeros_like(values)
    return MaskedTimeseries(
        values.nan_to_num(0.0),
        ~values.isnan(),
        zeros,
        zeros,
        zeros[..., 0].int(),
        covariates_ahead,
    )


def toto(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    from toto.inference.forecaster import TotoForecaster

    forecast = TotoForecaster(native.model).forecast(
        masked(batch),
        prediction_length=horizon,
        num_samples=DRAWS,
        samples_per_batch=DRAWS,
    )
    quantiles = [forecast.quantile(level).flatten(0, 1) for level in LEVELS]
    samples = forecast.samples.flatten(0, 1).transpose(1, 2)
    return Answer(
        torch.stack(quantiles, dim=1).numpy(),
        samples.mean(dim=1).numpy(),
        samples.numpy(),
    )


def toto_2(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    import pandas as pd

    length = whole_patches(batch, 4096, 8)
    values = stacked(batch, max(length, *batch.lengths))
    filled = [
        torch.tensor(pd.DataFrame(item.numpy().T).ffill().fillna(0.0).to_numpy().T)
        for item in values
    ]
    inputs = {
        "target": torch.stack(filled)[..., -length:],
        "target_mask": ~values[..., -length:].isnan(),
        "series_ids": torch.zeros(values.shape[:2], dtype=torch.long),
    }
    return Answer(
        native.forecast(inputs, horizon=horizon).flatten(1, 2).transpose(0, 1).numpy()
    )


def fracast(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    rows = row_wise(batch, max(batch.lengths)).numpy()
    return Answer(native.forecast_batch(rows, horizon=horizon).transpose(0, 2, 1))


def tirex(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    quantiles, _ = native.forecast(
        [torch.tensor(value) for value in batch.values], prediction_length=horizon
    )
    return Answer(quantiles.transpose(1, 2).numpy())


def ttm(native: Any, batch: SeriesBatch, horizon: int) -> Answer:
    past = row_wise(batch, native.config.context_length)[..., None]
    output = native(
        past.nan_to_num(0.0), past_observed_mask=~past.isnan()
    ).prediction_outputs
    return Answer(output.transpose(1, 2).flatten(0, 1)[:, None, :horizon].numpy())


def timestral(
    native: Any, batch: SeriesBatch, horizon: int, *, both: bool = False
) -> Answer:
    options = {"symmetric_averaging": both, "clip_nonnegative": both}
    found = native.forecast(stacked(batch, max(batch.lengths)), horizon, **options)
    return Answer(found.quantiles.flatten(0, 1).transpose(1, 2).numpy())


def _named(name: str) -> Any:
    """The function named as the module of an architecture's wiring, if there is one."""
    return globals().get(architectures()[name].module)


NATIVE: dict[str, Callable[[Any, SeriesBatch, int], Answer]] = {
    name: _named(name) for name in architectures() if _named(name)
}

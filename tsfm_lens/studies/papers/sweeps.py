"""Errors of the paper over the whole benchmark: a sweep is run or resumed, and read.

Read :func:`sweep_item` first, which runs the sweep of one table or figure;
:func:`sweep_config` says which sweep that is. The designs (which variants, and how
results are read) are in :mod:`tsfm_lens.studies.papers.measures.benchmark`, the engine
in :mod:`tsfm_lens.sweep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tsfm_lens.core.errors import InputError, SweepFailedError, unknown_name
from tsfm_lens.data import bundled_names
from tsfm_lens.data.sources import find_bundled
from tsfm_lens.studies.papers.context import MeasuredValues
from tsfm_lens.studies.papers.items import TABLE_3, Item
from tsfm_lens.studies.papers.measures.benchmark import DESIGNS, Subject
from tsfm_lens.sweep.engine.sweeping import Progress, run_sweep
from tsfm_lens.sweep.planner.config import ModelConfig, SweepConfig, parse_config
from tsfm_lens.sweep.planner.models import open_model
from tsfm_lens.sweep.planner.recipes import SAME_WEIGHTS
from tsfm_lens.sweep.results.gathering import Gathered, gather


@dataclass(frozen=True)
class Where:
    """Benchmark, store and engine of a sweep."""

    store: str | Path | None = None
    benchmark: str | Path | None = None
    configs: Sequence[str] = ("*",)
    engine: str = "single"
    workers: int | None = None
    progress: Progress | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)


def sweep_item(
    item: Item, models: Sequence[str], data: Any, where: Where, **options: Any
) -> tuple[MeasuredValues, list[str], dict[str, Any]]:
    """Run the sweep behind a table or figure, and read what it reports."""
    if data is not None and (
        where.benchmark is not None or tuple(where.configs) != ("*",)
    ):
        raise InputError(
            "give series or a folder and configurations of GIFT-Eval, not both"
        )
    config, subjects = sweep_config(item, models, data, where, **options)
    folder = Path(where.store or f"{item.id}.store")
    outcome = run_sweep(
        config,
        folder,
        engine=where.engine,
        workers=where.workers,
        progress=where.progress,
    )
    if outcome.cancelled:
        # the engine ends cleanly on a signal; the command still has to report it
        raise KeyboardInterrupt
    if outcome.failed:
        raise SweepFailedError(
            f"{len(outcome.failed)} groups of {item.id} failed, the rest is kept in"
            f" {folder} and the same command goes on with it; the first:"
            f" {outcome.failed[0]}"
        )
    sweep = gather(folder, config.name)
    result = DESIGNS[item.id].read(sweep, subjects)
    result = replace(
        result,
        settings=_settings(item, sweep, subjects, config),
        notes=(*result.notes, *sweep.notes),
    )
    sources = [subject.source for subject in subjects]
    metadata = [sweep.provenance["models"][source] for source in sources]
    attrs: dict[str, Any] = {
        "model": ", ".join(sources),
        **{
            name: ", ".join(
                dict.fromkeys(str(model.get(name, "")) for model in metadata)
            )
            for name in ("revision", "architecture", "versions")
        },
        "store": str(folder),
        "confidence": sweep.provenance["config"]["statistics"]["confidence"],
    }
    return result, sources, attrs


def sweep_config(
    item: Item,
    models: Sequence[str] = (),
    data: Any = None,
    where: Where | None = None,
    *,
    windows: int | None = None,
    horizon: int | None = None,
    num_samples: int | None = None,
    seed: int = 0,
) -> tuple[SweepConfig, Sequence[Subject]]:
    """Configure the sweep behind a table or figure, and list the models it runs."""
    design = DESIGNS[item.id]
    where = where or Where()
    sources = list(dict.fromkeys(models)) or item.model.split(", ")
    if design.single and len(sources) > 1:
        raise InputError(
            f"{item.id} is about one model, and {len(sources)} are given:"
            f" {', '.join(sources)}"
        )
    subjects = design.fit([open_subject(source) for source in sources])
    if windows is not None and windows < 1:
        raise InputError(f"windows is {windows}, expected 1 or more")
    sources_of_data: list[dict[str, Any]]
    if data is None:
        path = None if where.benchmark is None else str(where.benchmark)
        configs = list(where.configs)
        sources_of_data = [{"source": "gift_eval", "path": path, "configs": configs}]
    else:
        sources_of_data = _series(data, subjects, windows or 1, horizon, where.reading)
    content = {
        "name": item.id,
        "models": [_model(subject, num_samples) for subject in subjects],
        "data": sources_of_data,
        "variants": design.variants(subjects),
        "windows": windows if data is None else None,
        "seed": seed,
    }
    return parse_config(content, f"the sweep of {item.id}"), subjects


def open_subject(source: str) -> Subject:
    """Return a model by name; the paper's own need not be opened."""
    if not isinstance(source, str | Path):
        raise InputError(
            "a sweep opens its models by name, in every worker: give a checkpoint,"
            f" folder or hub id, not {source!r}"
        )
    for architecture, evaluation in TABLE_3.items():
        if evaluation.model == source:
            return Subject(source, architecture, evaluation.layers, evaluation.heads)
    lens = open_model(ModelConfig(source=str(source)))
    if getattr(lens.adapter, "integers", False):
        raise InputError(
            f"{lens.model_id} reads tokens of text; the paper's numbers are of"
            " time-series models"
        )
    stack = lens.wiring.output_stack
    architecture = lens.wiring.architecture
    canonical = SAME_WEIGHTS.get(architecture, architecture)
    return Subject(
        str(source),
        canonical,
        stack.n_layers,
        stack.n_heads,
        int(lens.adapter.prediction_length),
    )


def _model(subject: Subject, num_samples: int | None) -> dict[str, Any]:
    model: dict[str, Any] = {"source": subject.source}
    if evaluation := subject.evaluation:
        model["context_length"] = evaluation.context
        model["num_samples"] = (
            None if evaluation.samples is None else num_samples or evaluation.samples
        )
    return model


def _series(
    data: Any,
    subjects: Sequence[Subject],
    windows: int,
    horizon: int | None,
    reading: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Configure bundled series and files as sources of a sweep."""
    if isinstance(data, str | Path):
        sources_given = [data]
    elif isinstance(data, list | tuple):
        sources_given = list(data)
    else:
        sources_given = []
    if not sources_given or not all(
        isinstance(entry, str | Path) for entry in sources_given
    ):
        raise InputError(
            "a sweep reads its series in every worker: give names of bundled series or"
            f" CSV or Parquet files, not {type(data).__name__}"
        )
    steps = [subject.steps for subject in subjects if subject.steps is not None]
    if horizon is None and not steps:
        raise InputError("give a horizon, in forecast steps, for series of your own")
    windowing = {
        "horizon": min(steps) if horizon is None else horizon,
        "windows": windows,
    }
    names: dict[str, None] = {}
    sources: list[dict[str, Any]] = []
    for name in map(str, sources_given):
        bundled = find_bundled([name]) or ([name] if name in bundled_names() else [])
        names |= dict.fromkeys(bundled)
        if bundled:
            continue
        if not Path(name).is_file():
            raise unknown_name(
                "series", name, bundled_names(), hint="Or give a CSV or Parquet file."
            )
        sources.append(
            {
                "source": "file",
                # a worker may have another working directory
                "path": str(Path(name).resolve()),
                **windowing,
                **reading,
            }
        )
    if reading and not sources:
        raise InputError(f"{next(iter(reading))}=… applies to files, and none is given")
    if names:
        bundled_sources = [{"source": "bundled", "names": list(names), **windowing}]
    else:
        bundled_sources = []
    return [*bundled_sources, *sources]


def _settings(
    item: Item, sweep: Gathered, subjects: Sequence[Subject], config: SweepConfig
) -> dict[str, str]:
    """Describe series, windows, contexts and samples by the items' settings."""
    datasets = sweep.provenance["datasets"]
    names = [dataset["name"] for dataset in datasets]
    benchmark = config.data[0].source == "gift_eval"
    series = ", ".join(names[:4])
    if len(names) > 4:
        series += " …"
    if benchmark and str(len(names)) == item.settings["datasets"]:
        series = item.settings["series"]
    if benchmark and config.windows is None:
        windows = "all"
    else:
        windows = str(sum(dataset["windows"] for dataset in datasets))
    settings = {"series": series, "datasets": str(len(names)), "windows": windows}
    if not benchmark:
        settings["horizon"] = ", ".join(
            sorted({str(dataset["horizon"]) for dataset in datasets})
        )
    for subject, model in zip(subjects, config.models, strict=True):
        if subject.evaluation is None:
            title = subject.source
        else:
            title = subject.evaluation.title
        settings[f"context of {title}"] = str(
            sweep.provenance["models"][subject.source]["context_length"]
        )
        if model.num_samples is not None:
            settings[f"samples of {title}"] = str(model.num_samples)
    return settings

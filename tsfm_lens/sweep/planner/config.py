"""Configuration of a sweep: a YAML file, checked field by field.

Read :class:`SweepConfig` first; :func:`read_config` reads it from a file. The fields of
its data are in :mod:`tsfm_lens.sweep.data.config`. Nothing here opens a model or plans
a cell.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import CONFIDENCE, LEVEL
from tsfm_lens.data.checked import Strict, Texts, complaints, read_fields
from tsfm_lens.sweep.data.config import SOURCES, Source
from tsfm_lens.sweep.data.evaluation import EvaluationSet

# raised whenever this package would compute other numbers for the same cell, so that
# cells of earlier versions are not reused
NUMERICS = 2

Part = Literal["both", "heads", "mlp"]
How = Literal["zero", "mean", "resample", "noise"]


class ModelConfig(Strict):
    """One model of a sweep.

    Attributes:
        source: what :func:`tsfm_lens.load` opens.
        name: title in results and figures; the source if empty.
        revision, dtype, device: as for :func:`tsfm_lens.load`.
        context_length: steps of the past that the model is shown.
        num_samples: sample paths of a series, for a model that draws them.
        univariate: whether every variate is forecast by itself.
    """

    source: str
    name: str = ""
    revision: str | None = None
    context_length: int | None = Field(default=None, ge=1)
    num_samples: int | None = Field(default=None, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    univariate: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_source(cls, fields: object) -> object:
        """Take the source alone, as in ``models: [bolt-nano, chronos-nano]``."""
        if isinstance(fields, str):
            return {"source": fields}
        return fields

    @property
    def title(self) -> str:
        """Name in results and figures."""
        return self.name or self.source


class Layers(Strict):
    """Whole layers and groups of consecutive layers.

    A size is the number of layers in a group; "all" is the whole stack.
    """

    sizes: tuple[int | Literal["all"], ...] = (1,)
    parts: tuple[Part, ...] = ("both", "heads", "mlp")


class Ranges(Strict):
    """Growing ranges of layers.

    "outward" begins at the middle layer, "up" at the lowest and "down" at the highest.
    """

    grow: tuple[Literal["outward", "up", "down"], ...] = ("outward",)
    parts: tuple[Part, ...] = ("heads", "mlp")


class Heads(Strict):
    """Every head by itself.

    ``paired`` ablates the self- and the cross-attention head of one index in one
    variant.
    """

    paired: bool = False


class HeadsPerLayer(Strict):
    """The same number of heads in every layer at once.

    Each of the ``counts`` is ablated in each of the ``orders``, which say by what the
    heads are ranked and which end goes first.
    """

    counts: tuple[int, ...]
    orders: Texts = ("stable_rank:low",)


class HeadsAtConfig(Strict):
    """Search for the number of heads that each layer must keep.

    Attributes:
        tolerance: relative change of the metric that is still accepted.
        metric: name of the metric.
        orders: in which heads are ablated; a search is made in each.
        search: "scan" tries all counts, "bisection" halves their range, "sequential"
            tests each on growing parts of the series.
        layers: layers to search; all if None.
        alpha: chance that a sequential search differs from the scan.
        windows_for_orders: windows for orders that rank heads by their activations.

    Source:
        tsfm-lens paper, definition 5.2.
    """

    tolerance: float = Field(default=0.01, gt=0)
    metric: str = "MASE"
    orders: Texts = ("stable_rank:low", "stable_rank:high")
    search: Literal["scan", "bisection", "sequential"] = "scan"
    layers: tuple[int, ...] | None = None
    alpha: float = Field(default=LEVEL, gt=0, lt=1)
    windows_for_orders: int = Field(default=16, ge=1)

    @model_validator(mode="after")
    def _check_metric(self) -> HeadsAtConfig:
        from tsfm_lens.sweep.statistics.scores import METRICS, SUMS_OF_ERRORS

        metrics = METRICS
        # its statistic is a ratio of sums of errors, see looks.log_change
        if self.search == "sequential":
            metrics = SUMS_OF_ERRORS
        if self.metric not in metrics:
            reason = "it is no metric"
            if self.metric in METRICS:
                reason = "a sequential test needs a mean of errors"
            raise ValueError(
                f"metric {self.metric!r} cannot be used: {reason}; there are"
                f" {', '.join(metrics)}"
            )
        return self


_FAMILIES = ("layers", "ranges", "heads", "heads_per_layer", "heads_at")


class Variants(Strict):
    """Components that are ablated, by family.

    With ``scale_recipes``, a recipe for another size of model is scaled to each model.
    ``random_seeds`` is the number of random sets of heads that each recipe is compared
    with. They are distinct; where there are fewer sets, each is taken once.
    """

    layers: Layers | None = None
    ranges: Ranges | None = None
    heads: Heads | None = None
    heads_per_layer: HeadsPerLayer | None = None
    heads_at: HeadsAtConfig | None = None
    components: dict[str, Texts] = Field(default_factory=dict)
    recipes: Texts = ()
    scale_recipes: bool = False
    random_seeds: int = Field(default=0, ge=0, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _fill_bare_families(cls, content: Any) -> Any:
        """Give a family that is named without fields its default fields."""
        if not isinstance(content, dict):
            return content
        # YAML reads ``heads:`` without fields as None; heads_per_layer has no default
        # for its counts
        bare = [name for name in _FAMILIES if name != "heads_per_layer"]
        return {
            key: {} if value is None and key in bare else value
            for key, value in content.items()
        }

    @model_validator(mode="after")
    def _check_not_empty(self) -> Variants:
        families = (*_FAMILIES, "components", "recipes")
        if not any(getattr(self, name) for name in families):
            raise ValueError(
                f"nothing is ablated; give at least one of {', '.join(families)}"
            )
        return self


class Statistics(Strict):
    """Confidence of intervals and tests.

    A change is significant if its corrected p-value is at most 1 - confidence.
    """

    confidence: float = Field(default=CONFIDENCE, gt=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _without_replicates(cls, content: Any) -> Any:
        # a number of bootstrap replicates in stores from before 0.2; intervals no
        # longer need one
        if isinstance(content, dict):
            return {key: content[key] for key in content if key != "replicates"}
        return content


class SweepConfig(Strict):
    """A sweep: models × variants × datasets.

    Attributes:
        name: title of the report.
        models, data, variants: what is swept over.
        windows: windows of each dataset, drawn at random; all if None.
        chunk: most series of a cell, the unit that is finished, kept and resumed.
        block: most variants in one file of the store.
        distance_steps: how many forecast steps, from the first on, are compared with
            the plain forecast.
        how: what replaces the output of ablated components.
        reference_windows: windows on which the values of "mean" and "resample" are
            recorded.
        seed: seed by which windows and forecasts are drawn.
        devices: torch devices over which workers are distributed.
        statistics: see :class:`Statistics`.
    """

    name: str = "sweep"
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    data: tuple[Source, ...] = Field(min_length=1)
    variants: Variants
    windows: int | None = Field(default=None, ge=1)
    chunk: int = Field(default=64, ge=1)
    block: int = Field(default=64, ge=1)
    distance_steps: int = Field(default=64, ge=2)
    how: How = "zero"
    reference_windows: int = Field(default=32, ge=1)
    seed: int = Field(default=0, ge=0)
    devices: tuple[str, ...] = ()
    statistics: Statistics = Statistics()

    @model_validator(mode="after")
    def _check_titles(self) -> SweepConfig:
        titles = [model.title for model in self.models]
        duplicates = sorted({title for title in titles if titles.count(title) > 1})
        if duplicates:
            raise ValueError(
                f"two models are called {duplicates[0]!r}; give each its own name"
            )
        return self

    def evaluation_sets(self) -> list[EvaluationSet]:
        """Build all sets of the sweep.

        Each has at most ``windows`` windows, drawn at random.

        Returns:
            The sets.

        Raises:
            InputError: a source cannot be read, or two sets have one name.
            UnknownNameError: no such dataset.
        """
        sets: dict[str, EvaluationSet] = {}
        for source in self.data:
            for dataset in source.sets():
                # a report tells sets apart by their names alone
                if dataset.name in sets:
                    raise InputError(
                        f"dataset {dataset.name!r} is in the configuration more than"
                        " once"
                    )
                sets[dataset.name] = dataset.sample(self.windows, self.seed)
        return list(sets.values())


def plan_name(config: SweepConfig) -> str:
    """Name a sweep's plan.

    Returns:
        The sweep's name, as files allow it, and a hash of all that determines its
        results.
    """
    content = config.model_dump(mode="json", exclude_none=True, exclude={"devices"})
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    name = re.sub(r"[^\w.-]+", "-", config.name).strip(".-") or "sweep"
    return f"{name}-{digest[:8]}"


def read_config(path: str | Path) -> SweepConfig:
    r"""Read a sweep's configuration from a YAML file.

    Args:
        path: of the file. Relative paths in it start at its folder.

    Returns:
        The checked configuration.

    Raises:
        InputError: the file cannot be read, is no YAML, or a field is wrong; the
            message names every such field.

    Example:
        >>> data = "data: [{source: bundled, names: [nile], horizon: 4, windows: 1}]"
        >>> variants = "variants: {layers: {sizes: [1]}}"
        >>> lines = ["models: [{source: bolt-nano}]", data, variants]
        >>> _ = (folder / "sweep.yaml").write_text("\n".join(lines))
        >>> sweep.read_config(folder / "sweep.yaml").data[0].horizon
        4
    """
    file = Path(path)
    content = read_fields(
        file, "the configuration", "the fields of a sweep: models, data, …"
    )
    return parse_config(_resolve_paths(content, file.parent), str(file))


def parse_config(
    content: dict[str, Any], where: str = "the configuration"
) -> SweepConfig:
    """Build a sweep's configuration from plain values.

    Args:
        content: models, data and variants, as a YAML file has them.
        where: name of the configuration in messages.

    Returns:
        The checked configuration.

    Raises:
        InputError: a field is wrong; the message names every such field.

    Example:
        >>> nile = {"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}
        >>> content = {"models": [{"source": "bolt-nano"}], "data": [nile]}
        >>> content["variants"] = {"layers": {"sizes": [1]}}
        >>> sweep.parse_config(content).seed
        0
    """
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        text = complaints(error, "a sweep", _find_fields)
        raise InputError(f"{where}: {text}") from error


def _find_fields(location: tuple[Any, ...]) -> list[str]:
    """Return the fields that exist at a location of a configuration.

    In pydantic's location, such as ("data", 0, "file", "path"), the kind of a source
    stands among the keys.
    """
    classes: dict[str, type[BaseModel]] = {
        **SOURCES,
        "models": ModelConfig,
        "variants": Variants,
    }
    families = (Layers, Ranges, Heads, HeadsPerLayer, HeadsAtConfig)
    # ``families`` in the order of ``_FAMILIES``
    classes |= {"statistics": Statistics, **dict(zip(_FAMILIES, families, strict=True))}
    # from the outermost in, so that the last one is the class whose field is wrong
    path = [classes[part] for part in location if part in classes]
    innermost = path[-1] if path else SweepConfig
    return list(innermost.model_fields)


def _resolve_paths(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the configuration with relative paths resolved from its folder."""

    def resolve(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        absolute = (folder / value).resolve()
        # no file has a glob's own name, but some match it
        is_relative = value[:1] not in "/~"
        if absolute.exists() or (is_relative and any(folder.glob(value))):
            return str(absolute)
        return value

    def resolve_unless_name(value: Any) -> Any:
        # a word without a suffix is the name of an embedded model or a recipe, even
        # if the folder has a file of that name
        is_name = (
            isinstance(value, str)
            and Path(value).name == value
            and not Path(value).suffix
        )
        if is_name:
            return value
        return resolve(value)

    def mappings(key: str) -> list[dict[str, Any]]:
        # what is not a list of mappings is left to pydantic, whose message names the
        # field
        items = content.get(key)
        if not isinstance(items, list):
            return []
        return [item for item in items if isinstance(item, dict)]

    # the content was read for this call alone, so it is changed in place
    for source in mappings("data"):
        if source.get("path"):
            source["path"] = resolve(source["path"])
    if isinstance(content.get("models"), list):
        content["models"] = [
            {"source": model} if isinstance(model, str) else model
            for model in content["models"]
        ]
    for model in mappings("models"):
        if isinstance(model.get("source"), str):
            # results are called by the source as written, wherever the folder is
            model["name"] = model.get("name") or model["source"]
            model["source"] = resolve_unless_name(model["source"])
    variants = content.get("variants")
    if isinstance(variants, dict) and isinstance(variants.get("recipes"), list):
        variants["recipes"] = [
            resolve_unless_name(recipe) for recipe in variants["recipes"]
        ]
    return content

"""The configuration of a sweep: a YAML file, checked field by field."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tsfm_lens.errors import InputError

Part = Literal["both", "heads", "mlp"]
How = Literal["zero", "mean", "resample", "noise"]
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class _Strict(BaseModel):
    """Unknown keys are refused, so that a misspelt one is not silently without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Strict):
    """One model of a sweep.

    Attributes:
        source: embedded checkpoint, folder or hub id.
        name: in results and figures; the source if not given.
        revision: of a hub id.
        context_length: steps shown to the model; its own if None.
        num_samples: sample paths of a sampling model; its configured number if None.
        dtype: "float32", "bfloat16" or "float16".
        device: torch device; the processes engine deals the sweep's ``devices`` out instead, if there are any.
        univariate: whether variates of one item are forecast apart even if the model takes them together.
    """

    source: str
    name: str = ""
    revision: str | None = None
    context_length: int | None = Field(default=None, ge=1)
    num_samples: int | None = Field(default=None, ge=1)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    univariate: bool = False

    @property
    def title(self) -> str:
        """Name in results and figures."""
        return self.name or self.source


class GiftEval(_Strict):
    """Configurations of GIFT-Eval from its folders; ``$GIFT_EVAL`` if there is no path."""

    source: Literal["gift_eval"]
    path: str | None = None
    configs: tuple[str, ...] = ("*",)
    missing: Literal["error", "skip"] = "error"


class Bundled(_Strict):
    """Series that come with the package; the last windows of each are forecast."""

    source: Literal["bundled"]
    names: tuple[str, ...] = ()
    horizon: int = Field(ge=1)
    windows: int = Field(default=1, ge=1)
    stride: int | None = Field(default=None, ge=1)


class File(_Strict):
    """A CSV or Parquet file; the last windows of each series are forecast."""

    source: Literal["file"]
    path: str
    name: str = ""
    horizon: int = Field(ge=1)
    windows: int = Field(default=1, ge=1)
    stride: int | None = Field(default=None, ge=1)


class Dysts(_Strict):
    """Trajectories of chaotic systems, integrated by the package dysts; see ``tsfm_lens.data.dysts_sets``."""

    source: Literal["dysts"]
    systems: tuple[str, ...] = ("*",)
    path: str | None = None
    horizon: int = Field(default=512, ge=1)
    windows: int = Field(default=1, ge=1)
    stride: int | None = Field(default=None, ge=1)
    points: int = Field(default=4096, ge=2)
    periods: float = Field(default=40, gt=0)
    instances: int = Field(default=1, ge=1)
    integrator: Literal["LSODA", "DOP853"] = "LSODA"
    multivariate: bool = False
    seed: int = 0


Source = Annotated[GiftEval | Bundled | File | Dysts, Field(discriminator="source")]


class Layers(_Strict):
    """Whole layers and groups of consecutive layers.

    Attributes:
        sizes: layers in a group; "all" is the whole stack.
        parts: what goes: "heads", "mlp" or "both".
    """

    sizes: tuple[int | Literal["all"], ...] = (1,)
    parts: tuple[Part, ...] = ("both", "heads", "mlp")


class Ranges(_Strict):
    """Growing ranges of layers: from the middle "outward", from the lowest "up", from the highest "down"."""

    grow: tuple[Literal["outward", "up", "down"], ...] = ("outward",)
    parts: tuple[Part, ...] = ("heads", "mlp")


class Heads(_Strict):
    """Every head by itself; ``paired`` takes self- and cross-attention heads of one index together."""

    paired: bool = False
    kind: str | None = None


class HeadsPerLayer(_Strict):
    """As many heads in every layer at once."""

    counts: tuple[int, ...]
    orders: tuple[str, ...] = ("stable_rank:low",)


class HeadsAt(_Strict):
    """How many heads each layer must keep (definition 5.2 of the tsfm-lens paper).

    Attributes:
        tolerance: relative rise of the error that is allowed, exclusive.
        metric: whose geometric mean over datasets is the error.
        orders: in which heads are ablated, such as "stable_rank:low".
        search: "scan" runs all counts; "bisection" and "sequential" run fewer and may err.
        layers: all if None.
        alpha: of the sequential test.
        windows_for_orders: windows that orders which need data are measured on.
    """

    tolerance: float = Field(default=0.01, gt=0)
    metric: str = "MASE"
    orders: tuple[str, ...] = ("stable_rank:low", "stable_rank:high")
    search: Literal["scan", "bisection", "sequential"] = "scan"
    layers: tuple[int, ...] | None = None
    alpha: float = Field(default=0.05, gt=0, lt=1)
    windows_for_orders: int = Field(default=16, ge=1)


class Variants(_Strict):
    """What is ablated.

    Attributes:
        layers, ranges, heads, heads_per_layer, heads_at: see there.
        components: label -> components or globs of them.
        recipes: names or files; each runs on the models that it is written for.
        scale_recipes: run them on models of other sizes too: the same shares of heads at the same depths.
        random_seeds: so many random choices of as many heads beside each recipe.
    """

    layers: Layers | None = None
    ranges: Ranges | None = None
    heads: Heads | None = None
    heads_per_layer: HeadsPerLayer | None = None
    heads_at: HeadsAt | None = None
    components: dict[str, tuple[str, ...]] = {}
    recipes: tuple[str, ...] = ()
    scale_recipes: bool = False
    random_seeds: int = Field(default=0, ge=0)


class Statistics(_Strict):
    """Intervals of all changes."""

    confidence: float = Field(default=0.95, gt=0, lt=1)
    replicates: int = Field(default=2000, ge=100)
    level: float = Field(default=0.05, gt=0, lt=1)


class SweepConfig(_Strict):
    """A sweep: models × variants × datasets.

    Attributes:
        name: title of the report.
        models, data, variants: what is swept over.
        windows: windows of each dataset, drawn at random; all if None.
        chunk: series of one cell, the unit that is finished, kept and resumed.
        block: variants of one file of the store.
        distance_steps: forecast steps that distances to the plain forecast are taken over.
        how: what takes the place of ablated components.
        reference_windows: windows on which the values of "mean" and "resample" are recorded.
        seed: of the windows, forecasts and replicates.
        memory: limit of what the forecasts of one worker may hold, such as "4 GB"; half of what is free if None.
        devices: torch devices that workers are dealt out to.
        statistics: see there.
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
    memory: int | None = None
    devices: tuple[str, ...] = ()
    statistics: Statistics = Statistics()

    @field_validator("memory", mode="before")
    @classmethod
    def _bytes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value)
        if found is None or found[2].upper() not in UNITS:
            raise ValueError(f"{value!r} is no amount of memory, write it like '4 GB'")
        return int(float(found[1]) * UNITS[found[2].upper()])

    @model_validator(mode="after")
    def _names(self) -> SweepConfig:
        titles = [model.title for model in self.models]
        repeated = sorted({title for title in titles if titles.count(title) > 1})
        if repeated:
            raise ValueError(f"two models are called {repeated[0]!r}; give each its own name")
        return self


def read_config(path: str | Path) -> SweepConfig:
    """A sweep's configuration from a YAML file; relative paths in it start at its folder.

    Raises:
        InputError: the file cannot be read, is no YAML, or a field is wrong; the message names every such field.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the configuration {str(file)!r} cannot be read: {error}") from error
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{str(file)!r} is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{str(file)!r} holds {type(content).__name__}, expected the fields of a sweep: models, data, …"
        )
    return parse_config(_anchored(content, file.parent), str(file))


def parse_config(content: dict[str, Any], where: str = "the configuration") -> SweepConfig:
    """A sweep's configuration from plain values.

    Raises:
        InputError: a field is wrong; the message names every such field.
    """
    try:
        return SweepConfig.model_validate(content)
    except ValidationError as error:
        lines = [_complaint(each) for each in error.errors()]
        raise InputError(f"{where}: " + "; ".join(lines)) from error


def _complaint(error: Any) -> str:
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        near = get_close_matches(str(error["loc"][-1]), known, n=1) or known
        return f"{place} is no field of a sweep; the nearest is {near[0]!r} (there are {', '.join(known)})"
    message = error["msg"].removeprefix("Value error, ")
    given = error.get("input")
    shown = f" (got {given!r})" if isinstance(given, str | int | float) else ""
    return f"{place}: {message}{shown}" if place else message


def _fields_at(place: tuple[Any, ...]) -> list[str]:
    """Fields of the part of a configuration at a place."""
    classes: dict[str, type[BaseModel]] = {
        "models": ModelConfig,
        "gift_eval": GiftEval,
        "bundled": Bundled,
        "file": File,
        "dysts": Dysts,
        "layers": Layers,
        "ranges": Ranges,
        "heads": Heads,
        "heads_per_layer": HeadsPerLayer,
        "heads_at": HeadsAt,
        "variants": Variants,
        "statistics": Statistics,
    }
    names = [part for part in place if isinstance(part, str) and part in classes]
    return list((classes[names[-1]] if names else SweepConfig).model_fields)


def _anchored(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same configuration with relative paths of files turned into ones from its folder."""

    def path(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        there = (folder / value).resolve()
        return str(there) if there.exists() else value

    content = dict(content)
    if isinstance(content.get("data"), list):
        content["data"] = [
            {**each, "path": path(each["path"])} if isinstance(each, dict) and each.get("path") else each
            for each in content["data"]
        ]
    if isinstance(content.get("models"), list):
        content["models"] = [
            {**each, "source": path(each["source"]), "name": each.get("name") or each["source"]}
            if isinstance(each, dict) and isinstance(each.get("source"), str)
            else each
            for each in content["models"]
        ]
    variants = content.get("variants")
    if isinstance(variants, dict) and isinstance(variants.get("recipes"), list):
        content["variants"] = {**variants, "recipes": [path(each) for each in variants["recipes"]]}
    return content

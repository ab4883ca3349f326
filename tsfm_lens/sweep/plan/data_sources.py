"""Data of a sweep, as fields of its configuration."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tsfm_lens.data.checked import Strict, Texts


def _date_text(value: Any) -> Any:
    return str(value) if isinstance(value, date) else value


Stamp = Annotated[str, BeforeValidator(_date_text)]
"""A timestamp; one without quotes is a date in YAML."""


class _Cut(Strict):
    """Last windows of each series, which are forecast."""

    horizon: int = Field(ge=1)
    windows: int = Field(default=1, ge=1)
    stride: int | None = Field(default=None, ge=1)


class GiftEval(Strict):
    """Configurations of GIFT-Eval from its folders; ``$GIFT_EVAL`` if there is no path."""

    source: Literal["gift_eval"]
    path: str | None = None
    configs: Texts = ("*",)
    missing: Literal["error", "skip"] = "error"


class Folder(Strict):
    """One dataset that is stored like GIFT-Eval's; its windows are those of the benchmark's rules.

    Attributes:
        path: folder with state.json.
        name: folder and term if not given.
        term: "short", "medium" or "long".
        horizon: the benchmark's for the frequency and term if None.
        freq: the stored one if None.
        domain: field of the data.
    """

    source: Literal["folder"]
    path: str
    name: str = ""
    term: Literal["short", "medium", "long"] = "short"
    horizon: int | None = Field(default=None, ge=1)
    freq: str | None = None
    domain: str = ""


class Bundled(_Cut):
    """Series that come with the package."""

    source: Literal["bundled"]
    names: Texts = ()


class File(_Cut):
    """A CSV or Parquet file, all files of a folder, or those that a glob names, a dataset each.

    Attributes:
        path: of the file or folder, or a glob such as ``plants/*.csv``.
        name: the file's if not given; of several files ``name/file``.
        id_column, time_column: columns of ids and timestamps; found by their names if None.
        targets: columns that are series of their own.
        variates: columns that are the variates of one item, in place of targets.
        time_format, delimiter, decimal, encoding, header: how text is written; see ``tsfm_lens.data.read_series``.
        freq: pandas frequency alias; from the timestamps if None.
        start: timestamp of every series' first value, where the file has none.
        seasonality: season length in steps; from the frequency if None.
    """

    source: Literal["file"]
    path: str
    name: str = ""
    id_column: str | None = None
    time_column: str | None = None
    time_format: str | None = None
    targets: Texts | None = None
    variates: Texts | None = None
    delimiter: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    header: bool | None = None
    freq: str | None = None
    start: Stamp | None = None
    seasonality: int | None = Field(default=None, ge=1)

    @property
    def reading(self) -> dict[str, Any]:
        """Options of ``as_series`` among the fields."""
        return self.model_dump(exclude={"source", "path", "name", *_Cut.model_fields})


class Gluonts(_Cut):
    """A gluonts dataset on disk.

    Attributes:
        path: a file of JSON lines, Arrow or Parquet, or a folder of such files.
        name: the file's or folder's if not given.
        freq: frequency of all entries, in any pandas spelling.
        seasonality: season length in steps; from the frequency if None.
        domain: field of the data.
    """

    source: Literal["gluonts"]
    path: str
    name: str = ""
    freq: str
    seasonality: int | None = Field(default=None, ge=1)
    domain: str = ""


class Dysts(_Cut):
    """Trajectories of chaotic systems, integrated by the package dysts; see ``tsfm_lens.data.dysts_sets``."""

    source: Literal["dysts"]
    systems: Texts = ("*",)
    path: str | None = None
    horizon: int = Field(default=512, ge=1)
    points: int = Field(default=4096, ge=2)
    periods: float = Field(default=40, gt=0)
    instances: int = Field(default=1, ge=1)
    integrator: Literal["LSODA", "DOP853"] = "LSODA"
    multivariate: bool = False
    seed: int = 0


Source = Annotated[GiftEval | Folder | Bundled | File | Gluonts | Dysts, Field(discriminator="source")]
SOURCES: dict[str, type[Strict]] = {
    "gift_eval": GiftEval,
    "folder": Folder,
    "bundled": Bundled,
    "file": File,
    "gluonts": Gluonts,
    "dysts": Dysts,
}

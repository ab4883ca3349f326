"""Data of a sweep, as fields of its configuration.

Each class is one value of ``source`` with its options, and its ``sets()`` loads the
evaluation sets. The loading itself is in the other modules of this package.
"""

from __future__ import annotations

from datetime import date
from glob import iglob
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.bundled import bundled_names
from tsfm_lens.data.checked import Strict, Texts
from tsfm_lens.data.files import READABLE
from tsfm_lens.sweep.data.dysts_sets import dysts_sets
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.data.evaluation_sources import gluonts_file, holdout_sets
from tsfm_lens.sweep.data.gift_eval import gift_eval, gift_eval_folder

Stamp = Annotated[
    str, BeforeValidator(lambda value: str(value) if isinstance(value, date) else value)
]
"""A timestamp as text; one without quotes, which YAML reads as a date, is converted."""


class _RollingWindows(Strict):
    """Windows at the end of each series; horizon and stride are in steps."""

    horizon: int = Field(ge=1)
    windows: int = Field(default=1, ge=1)
    stride: int | None = Field(default=None, ge=1)


class GiftEval(Strict):
    """Configurations of GIFT-Eval, read from its folders.

    The benchmark's folder is ``path``, or that of ``$GIFT_EVAL`` if there is none.
    """

    source: Literal["gift_eval"]
    path: str | None = None
    configs: Texts = ("*",)
    missing: Literal["error", "skip"] = "error"

    def sets(self) -> list[EvaluationSet]:
        """Load the evaluation sets; every class of a source has this method."""
        return gift_eval(self.path, self.configs, missing=self.missing)


class Folder(Strict):
    """One dataset that is stored as GIFT-Eval stores its own.

    Its windows follow the benchmark's rules.
    """

    source: Literal["folder"]
    path: str
    name: str = ""
    term: Literal["short", "medium", "long"] = "short"
    horizon: int | None = Field(default=None, ge=1)
    freq: str | None = None
    domain: str = ""

    def sets(self) -> list[EvaluationSet]:
        """Read the sets of the folder."""
        options: dict[str, Any] = self.model_dump(include={"horizon", "freq", "domain"})
        return gift_eval_folder(self.path, self.term, name=self.name or None, **options)


class Bundled(_RollingWindows):
    """Series that come with the package."""

    source: Literal["bundled"]
    names: Texts = ()

    def sets(self) -> list[EvaluationSet]:
        """Cut the sets of bundled series."""
        return holdout_sets(
            list(self.names or bundled_names()), self.horizon, self.windows, self.stride
        )


class File(_RollingWindows):
    """CSV or Parquet files, each of which becomes a dataset.

    ``path`` is one file, a folder of files, or a glob.
    """

    source: Literal["file"]
    path: str
    name: str = ""
    id_column: str | None = None
    time_column: str | None = None
    time_format: str | None = None
    timezone: str | None = None
    round_time: str | None = None
    targets: Texts | None = None
    variates: Texts | None = None
    delimiter: str | None = None
    decimal: Literal[".", ","] | None = None
    thousands: str | None = None
    encoding: str | None = None
    header: bool | None = None
    freq: str | None = None
    start: Stamp | None = None
    seasonality: int | None = Field(default=None, ge=1)

    def sets(self) -> list[EvaluationSet]:
        """Cut the sets of the files."""
        reading = self.model_dump(
            # what is left are options of ``as_series``, by their names there
            exclude={"source", "path", "name", *_RollingWindows.model_fields}
        )
        sets: list[EvaluationSet] = []
        for path, name in self._files():
            # a Path, not a text, so that a file that is not there is never taken for
            # the name of a bundled series
            sets += holdout_sets(
                path, self.horizon, self.windows, self.stride, name, **reading
            )
        return sets

    def _files(self) -> list[tuple[Path, str | None]]:
        """List the files, with the names of their sets.

        They are one file, all readable files of a folder, or those that a glob matches.

        Returns:
            Path, and name of the set or None, of each file.
        """
        path = Path(self.path)
        is_glob = any(sign in self.path for sign in "*?[")
        # a path with such a sign is no glob if a file of just this name exists
        if not path.is_dir() and (path.exists() or not is_glob):
            return [(path, self.name or None)]
        pattern = str(path / "*") if path.is_dir() else self.path
        # sorted, since systems list a folder in different orders
        paths = sorted(map(Path, iglob(pattern, recursive=True)))
        files = [
            file
            for file in paths
            if file.is_file() and file.name.lower().endswith(READABLE)
        ]
        if not files:
            raise InputError(
                f"{self.path!r} has no file that can be read: expected"
                f" {', '.join(READABLE)}"
            )
        return [
            # several files under one name would make sets of one name
            (file, f"{self.name}/{file.name.split('.')[0]}" if self.name else None)
            for file in files
        ]


class Gluonts(_RollingWindows):
    """A gluonts dataset on disk."""

    source: Literal["gluonts"]
    path: str
    name: str = ""
    freq: str
    seasonality: int | None = Field(default=None, ge=1)
    domain: str = ""

    def sets(self) -> list[EvaluationSet]:
        """Cut the sets of the gluonts dataset."""
        options: dict[str, Any] = self.model_dump(
            include={"freq", "seasonality", "domain"}
        )
        return gluonts_file(
            self.path,
            self.horizon,
            self.windows,
            self.stride,
            self.name or None,
            **options,
        )


class Dysts(_RollingWindows):
    """Trajectories of chaotic systems, integrated by the package dysts.

    See ``tsfm_lens.sweep.data.dysts_sets``.
    """

    source: Literal["dysts"]
    systems: Texts = ("*",)
    horizon: int = Field(default=512, ge=1)
    points: int = Field(default=4096, ge=2)
    periods: float = Field(default=40, gt=0)
    instances: int = Field(default=1, ge=1)
    integrator: Literal["LSODA", "DOP853"] = "LSODA"
    multivariate: bool = False
    seed: int = 0

    def sets(self) -> list[EvaluationSet]:
        """Cut the sets of the chaotic systems."""
        options = self.model_dump(exclude={"source", "systems"})
        return dysts_sets(self.systems, **options)


# with a discriminator, pydantic chooses the class by ``source`` and reports the errors
# of that class alone, otherwise those of all six
Source = Annotated[
    GiftEval | Folder | Bundled | File | Gluonts | Dysts, Field(discriminator="source")
]
SOURCES = {
    # for messages on a wrong field, which list the fields of the source's class
    get_args(kind.model_fields["source"].annotation)[0]: kind
    for kind in get_args(get_args(Source)[0])
}

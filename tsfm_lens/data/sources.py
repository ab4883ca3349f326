"""Series of several sources: files, and bundled series by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.bundled import bundled, bundled_names
from tsfm_lens.data.files import read_series

_BUNDLED = "bundled:"


def read_sources(sources: Sequence[str], **reading: Any) -> SeriesBatch:
    """Read series from files and from ``bundled:NAME[,NAME…]``, as one batch.

    Args:
        sources: paths and names.
        reading: how all files are read, such as ``delimiter``, ``decimal``, ``units``
            and ``seasonality``.

    Returns:
        All series, as one batch.

    Returns:
        One batch, in the order of ``sources``.

    Raises:
        InputError: a file cannot be read, ``bundled:`` names nothing, or there are
            options and no file.
        UnknownNameError: there is no bundled series of a name.

    Example:
        >>> data.read_sources(["bundled:co2,nile"]).ids
        ('co2', 'nile')
    """
    batches = []
    # an option that no file takes would be ignored without a word
    if reading and all(source.startswith(_BUNDLED) for source in sources):
        name, value = next(iter(reading.items()))
        raise InputError(f"{name}={value!r} applies to files, and none is given")
    for source in sources:
        if not source.startswith(_BUNDLED):
            batches.append(read_series(source, **reading))
            continue
        names = find_bundled([source])
        if not names:
            raise InputError(
                f"{source!r} names no series: bundled:NAME[,NAME…], from"
                f" {', '.join(bundled_names())}"
            )
        batches.append(bundled(*names))
    if len(batches) == 1:
        return batches[0]
    return SeriesBatch.concat(batches)


def find_bundled(sources: Sequence[str]) -> list[str]:
    """Return the bundled series that ``bundled:NAME[,NAME…]`` names.

    For any other text there are none.
    """
    texts = [
        source.removeprefix(_BUNDLED)
        for source in sources
        if source.startswith(_BUNDLED)
    ]
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    series: list[str] = []
    for name in names:
        series += bundled_names() if name == "all" else (name,)
    return series

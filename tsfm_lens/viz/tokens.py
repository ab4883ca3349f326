"""Tokens on a time axis, along the sides of an attention pattern.

:func:`token_axis` reads the tokens of one side and :func:`ruler` lays them out: as wide
as the steps that they cover, with special tokens after a gap. :func:`pooled` merges
cells that would be too small to be seen. A step covers half a unit to each side, so the
forecast starts at -0.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.viz.theme import plain


@dataclass(frozen=True, kw_only=True)
class TokenAxis:
    """One side of an attention pattern.

    Attributes:
        start, stop: steps [start, stop) that each token covers, (token,).
        special: name of each special token, "" of the others, (token,).
        timed: indices of the ordinary tokens, by their first step.
        aside: indices of the special tokens.
    """

    start: np.ndarray
    stop: np.ndarray
    special: np.ndarray
    timed: np.ndarray
    aside: np.ndarray

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Return edges of cells in steps, (cell + 1,), and the token in each, (cell,).

        The token of a gap is -1.
        """
        edges: list[float] = []
        owner: list[int] = []
        for i in self.timed:
            low = self.start[i] - 0.5
            high = self.stop[i] - 0.5
            if edges and low > edges[-1]:
                owner.append(-1)
                edges.append(low)
            elif not edges:
                edges.append(low)
            owner.append(int(i))
            edges.append(high)
        return np.array(edges), np.array(owner, dtype=int)

    def words(self, token: int) -> str:
        """Write a token in words: its name, or the steps it covers."""
        if self.special[token]:
            return plain(f"{self.special[token]} token")
        first = int(self.start[token])
        last = int(self.stop[token]) - 1
        if first == last:
            return f"step {first}"
        return f"steps {first} to {last}"

    def special_labels(self) -> list[str]:
        """Return short names of the special tokens.

        A name that occurs several times is numbered.
        """
        texts = [str(self.special[i]) for i in self.aside]
        labels = []
        for index, text in enumerate(texts):
            number = texts[:index].count(text) + 1
            label = text if texts.count(text) == 1 else f"{text} {number}"
            labels.append(plain(label))
        return labels


def token_axis(ds: xr.Dataset, side: str, *, overlaps: bool = False) -> TokenAxis:
    """Return the keys or queries ("key", "query") of an attention Dataset."""
    coordinates = [f"{side}_start", f"{side}_stop", f"{side}_special"]
    missing = [name for name in coordinates if name not in ds.coords]
    if missing:
        raise InputError(
            f"an attention Dataset needs the coordinate {missing[0]!r} along {side!r}."
        )
    start, stop = (np.asarray(ds[name].values, dtype=int) for name in coordinates[:2])
    special = np.asarray([str(v) for v in ds[coordinates[2]].values])
    timed = np.flatnonzero(special == "")
    timed = timed[np.argsort(start[timed], kind="stable")]
    empty = timed[stop[timed] <= start[timed]]
    if len(empty):
        i = int(empty[0])
        raise InputError(
            f"{side} token {i} covers no step: [{start[i]}, {stop[i]}) must not be"
            " empty."
        )
    # keys of several passes cover the same steps; each gives way to the next one
    if overlaps and len(timed):
        stop = stop.copy()
        stop[timed[:-1]] = np.minimum(stop[timed[:-1]], start[timed[1:]])
    clash = np.flatnonzero(start[timed][1:] < stop[timed][:-1])
    if len(clash):
        a = timed[clash[0]]
        b = timed[clash[0] + 1]
        raise InputError(
            f"{side} tokens {a} [{start[a]}, {stop[a]}) and {b} [{start[b]}, {stop[b]})"
            " cover the same steps; select the tokens of one series first."
        )
    return TokenAxis(
        start=start,
        stop=stop,
        special=special,
        timed=timed,
        aside=np.flatnonzero(special != ""),
    )


@dataclass(frozen=True)
class Ruler:
    """Cells along one side of a pattern.

    Tokens over time come first; special ones follow after a gap, at a fixed width.

    Attributes:
        axis: tokens of this side.
        edges: of the cells, in steps, (cell + 1,).
        owner: token in each cell, -1 for a gap, (cell,).
        timed: number of cells over time.
        end: edge at which these end.
    """

    axis: TokenAxis
    edges: np.ndarray
    owner: np.ndarray
    timed: int
    end: float

    def ticks(self, most: int = 5) -> np.ndarray:
        """Return round steps on the part of the axis that is time."""
        if not self.timed:
            return np.empty(0)
        # a context ends where the forecast starts, so step 0 is its last tick
        low = self.edges[0]
        high = 0.0 if self.end == -0.5 else self.end
        smallest = max((high - low) / most, 1.0)
        size = 10.0 ** np.floor(np.log10(smallest))
        # there is no half a step, so 2.5 is left out where steps are counted singly
        factors = (1, 2, 5, 10) if size < 10 else (1, 2, 2.5, 5, 10)
        width = next(size * factor for factor in factors if size * factor >= smallest)
        result: np.ndarray = (
            np.arange(np.ceil(low / width), np.floor(high / width) + 1) * width
        )
        return result


def ruler(axis: TokenAxis) -> Ruler:
    """Lay out one side of a pattern."""
    edges, owner = axis.cells()
    timed = len(owner)
    count = len(axis.aside)
    end = 0.0
    if timed:
        end = float(edges[-1])
    span = 1.0
    if timed:
        span = float(edges[-1] - edges[0])
    if not timed:
        edges = np.zeros(1)
    elif count:
        edges = np.append(edges, end + 0.04 * span)
        owner = np.append(owner, -1)
    # special tokens cover no step; a share of the whole keeps them visible
    special_edges = edges[-1] + 0.06 * span * np.arange(1, count + 1)
    return Ruler(
        axis=axis,
        edges=np.concatenate([edges, special_edges]),
        owner=np.concatenate([owner, axis.aside]).astype(int),
        timed=timed,
        end=end,
    )


def choose_group(x: Ruler, y: Ruler, cells: int) -> tuple[int, int]:
    """Return how many adjacent keys and queries share a cell.

    A pattern then has about ``cells`` cells at most.
    """
    keys = len(x.owner)
    queries = len(y.owner)
    side = np.sqrt(cells)
    # cells / keys are left for each query, and the other way round: a short side leaves
    # its room to the long one
    return (
        int(np.ceil(keys / max(side, cells / max(queries, 1)))),
        int(np.ceil(queries / max(side, cells / max(keys, 1)))),
    )


def grouped(group: tuple[int, int]) -> str:
    """Write what a subtitle says about cells of several tokens."""
    keys, queries = group
    if keys == queries == 1:
        return ""
    parts = [
        f"{count} {word}"
        for count, word in ((keys, "keys"), (queries, "queries"))
        if count > 1
    ]
    return f"a cell: the largest value of {' × '.join(parts)}"


def pooled(
    weights: np.ndarray, x: Ruler, y: Ruler, group: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cells of one pattern (query, key), and their edges.

    A cell holds the largest value of a group of adjacent tokens over time.
    """
    x_starts = _starts(x, group[0])
    y_starts = _starts(y, group[1])
    # -1, the owner of a gap, picks the last token, whose weights are then removed
    z = weights[np.ix_(y.owner, x.owner)].astype(np.float32)
    z[y.owner < 0, :] = np.nan
    z[:, x.owner < 0] = np.nan
    # The largest and not the mean, which would hide a single sharp weight. fmax passes
    # over the NaN of gaps.
    z = np.fmax.reduceat(np.fmax.reduceat(z, x_starts, axis=1), y_starts, axis=0)
    return (
        z,
        np.append(x.edges[x_starts], x.edges[-1]),
        np.append(y.edges[y_starts], y.edges[-1]),
    )


def _starts(side: Ruler, group: int) -> np.ndarray:
    """Return where pooled cells begin.

    That is at every ``group``-th token over time, and at every special token.
    """
    return np.concatenate(
        [np.arange(0, side.timed, group), np.arange(side.timed, len(side.owner))]
    ).astype(int)

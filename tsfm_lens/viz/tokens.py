"""Tokens on a time axis: spans true to scale, special tokens aside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.theme import plain


@dataclass(frozen=True, kw_only=True)
class TokenAxis:
    """One side of an attention pattern.

    A step ``s`` takes the room from ``s - 0.5`` to ``s + 0.5``, so that a value drawn at ``s`` stands in
    the middle of a token that covers this step alone, and a token ``[start, stop)`` reaches from
    ``start - 0.5`` to ``stop - 0.5``.

    Attributes:
        start, stop: steps covered, in the order of the pattern, (token,).
        special: "" or the name of the special token, (token,).
        timed: indices of the tokens that cover steps, by start.
        aside: indices of the special tokens, in the order of the pattern.
    """

    start: np.ndarray
    stop: np.ndarray
    special: np.ndarray
    timed: np.ndarray
    aside: np.ndarray

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges of the cells in steps, (cell + 1,), and the token in each, -1 for a gap, (cell,)."""
        edges: list[float] = []
        owner: list[int] = []
        for i in self.timed:
            low, high = self.start[i] - 0.5, self.stop[i] - 0.5
            if edges and low > edges[-1]:
                owner.append(-1)
                edges.append(low)
            elif not edges:
                edges.append(low)
            owner.append(int(i))
            edges.append(high)
        return np.array(edges), np.array(owner, dtype=int)

    def words(self, token: int) -> str:
        """A token in words: its name, or the steps it covers."""
        if self.special[token]:
            return plain(f"{self.special[token]} token")
        first, last = int(self.start[token]), int(self.stop[token]) - 1
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def aside_labels(self) -> list[str]:
        """Short names of the special tokens, numbered where one name comes twice."""
        words = [str(self.special[i]) for i in self.aside]
        return [plain(w if words.count(w) == 1 else f"{w} {words[:n].count(w) + 1}") for n, w in enumerate(words)]


def token_axis(ds: xr.Dataset, side: str) -> TokenAxis:
    """The keys or queries ("key", "query") of an attention Dataset.

    Raises:
        InputError: coordinates are missing, a token covers no step, or spans overlap.
    """
    wanted = [f"{side}_start", f"{side}_stop", f"{side}_special"]
    missing = [name for name in wanted if name not in ds.coords]
    if missing:
        raise InputError(f"an attention Dataset needs the coordinate {missing[0]!r} along {side!r}.")
    start, stop = (np.asarray(ds[name].values, dtype=int) for name in wanted[:2])
    special = np.asarray([str(v) for v in ds[wanted[2]].values])
    timed = np.flatnonzero(special == "")
    timed = timed[np.argsort(start[timed], kind="stable")]
    empty = timed[stop[timed] <= start[timed]]
    if len(empty):
        i = int(empty[0])
        raise InputError(f"{side} token {i} covers no step: [{start[i]}, {stop[i]}) must not be empty.")
    clash = np.flatnonzero(start[timed][1:] < stop[timed][:-1])
    if len(clash):
        a, b = timed[clash[0]], timed[clash[0] + 1]
        raise InputError(
            f"{side} tokens {a} [{start[a]}, {stop[a]}) and {b} [{start[b]}, {stop[b]}) cover the same "
            "steps; select the tokens of one series first."
        )
    return TokenAxis(start=start, stop=stop, special=special, timed=timed, aside=np.flatnonzero(special != ""))

"""Token spans: the time steps that each token covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenSpans:
    """Time steps ``[start, stop)`` of every token of one stack, counted from the forecast start (the first step is 0).

    Encoder tokens cover the steps of their input; decoder tokens cover the steps that are read out from them.

    Attributes:
        start, stop: one entry per token; equal for special tokens.
        special: "" for a token of the series, else its kind: "EOS", "REG".
        variate: of which variate a token is, where those of an item share one sequence; () elsewhere.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    special: tuple[str, ...]
    variate: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def patches(
        cls, first: int, n: int, width: int, special_after: tuple[str, ...] = (), *, stride: int | None = None
    ) -> TokenSpans:
        """Make ``n`` tokens of ``width`` steps each from ``first`` on, ``stride`` apart, then special tokens."""
        step = stride or width
        ends = ((first + step * (n - 1) + width) if n else first,) * len(special_after)
        start = range(first, first + step * n, step)
        stop = range(first + width, first + width + step * n, step)
        return cls((*start, *ends), (*stop, *ends), ("",) * n + special_after)

    def __add__(self, other: TokenSpans) -> TokenSpans:
        """Return the tokens of both, one after the other."""
        variate = self.variate + other.variate
        return TokenSpans(self.start + other.start, self.stop + other.stop, self.special + other.special, variate)

    def shifted(self, steps: int) -> TokenSpans:
        """Return the same tokens counted from a forecast start that lies ``steps`` earlier."""
        start, stop = (tuple(edge + steps for edge in edges) for edges in (self.start, self.stop))
        return TokenSpans(start, stop, self.special, self.variate)

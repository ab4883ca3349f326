"""Things that are set up once and shared: the last one who needs them takes them down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import ExitStack


class Pool:
    """Counts who uses what, so that blocks may end in any order."""

    def __init__(self) -> None:
        self.users: Counter[Hashable] = Counter()
        self._open: dict[Hashable, ExitStack] = {}

    def acquire(self, key: Hashable, set_up: Callable[[ExitStack], object]) -> Callable[[], None]:
        """Count one more user of something; calling the function returned ends that use.

        Args:
            key: what is used.
            set_up: called for its first user; what it leaves on the stack runs after its last one.
        """
        if not self.users[key]:
            stack = ExitStack()
            try:
                set_up(stack)
            except BaseException:
                stack.close()
                raise
            self._open[key] = stack
        self.users[key] += 1

        def release() -> None:
            self.users[key] -= 1
            if not self.users[key]:
                del self.users[key]
                self._open.pop(key).close()

        return release

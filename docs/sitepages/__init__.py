"""Pages of the site that follow from the code, written before Sphinx reads its sources."""

from __future__ import annotations

from typing import Any

# types of other libraries, whose documentation cannot be looked up without a network
FOREIGN = [(r"py:.*", r"(?!tsfm_lens).*")]


def setup(app: Any) -> None:
    """Let Sphinx call what writes pages."""

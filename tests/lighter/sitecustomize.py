"""Rare garbage collections in every process that tests start: what is imported stays,
and looking through it again and again takes a sixth of the time of the imports.
"""

from __future__ import annotations

import gc

gc.set_threshold(100_000, 50, 50)

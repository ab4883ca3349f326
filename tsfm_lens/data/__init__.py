"""Series: reading, validation, corruption, and real series that come with the package.

:func:`as_series` makes a :class:`SeriesBatch` of whatever a user has, and every lens
takes that batch. Read :mod:`tsfm_lens.data.batch` first.
"""

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.bundled import BundledSeries, bundled, bundled_info, bundled_names
from tsfm_lens.data.coerce import as_series
from tsfm_lens.data.corruption import remove_motif, shift_phase, swap_season
from tsfm_lens.data.files import read_series
from tsfm_lens.data.frames import from_frame
from tsfm_lens.data.origins import windows
from tsfm_lens.data.sources import read_sources
from tsfm_lens.data.variates import by_variate

__all__ = [
    "BundledSeries",
    "SeriesBatch",
    "as_series",
    "bundled",
    "bundled_info",
    "bundled_names",
    "by_variate",
    "from_frame",
    "read_series",
    "read_sources",
    "remove_motif",
    "shift_phase",
    "swap_season",
    "windows",
]


def __dir__() -> list[str]:
    return __all__

"""Queue of the papers' long experiments: cells, run in order, each kept in a record.

The records ship. Read ``driver`` first: what a cell is, how it is kept, and the loop.
The other modules list the cells of one subject. ``plan.yaml`` fixes seeds and sizes.
"""

from tsfm_lens.studies.queue.driver import RECORDS, read_record

__all__ = ["RECORDS", "read_record"]

"""Commands of the studies, registered with the command line; an entry point names this
package.
"""

from tsfm_lens.studies.commands import reproduce, train

__all__ = ["reproduce", "train"]

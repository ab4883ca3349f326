"""``python -m tsfm_lens`` is the command ``tsfm-lens``."""

from tsfm_lens.cli import main

main()

"""``python -m tsfm_lens.cli``."""

from tsfm_lens.cli import main

main()

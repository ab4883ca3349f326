"""Places that cannot be written to are refused before anything is computed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tsfm_lens.errors import InputError
from tsfm_lens.places import refuse_unwritable


def test_a_folder_that_cannot_be_made_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for wrong in ("file", "file/a", "file/a/b", "link"):
        with pytest.raises(InputError, match=f"{re.escape(str(tmp_path / wrong))}' cannot be written: .* is a file"):
            refuse_unwritable(tmp_path / wrong)
    for right in ("", "a", "a/b"):
        refuse_unwritable(tmp_path / right)
    assert not (tmp_path / "a").exists()

"""Sites that cannot be written to are refused before anything is computed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import check_writable, replacing


def test_impossible_folder_is_reported_not_made(
    tmp_path: Path,
) -> None:
    """A folder that cannot be made is reported, and nothing is made."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for wrong in ("file", "file/a", "file/a/b", "link"):
        with pytest.raises(
            InputError,
            match=(
                f"{re.escape(str(tmp_path / wrong))}' cannot be written: .* is a file"
            ),
        ):
            check_writable(tmp_path / wrong)
    for right in ("", "a", "a/b"):
        check_writable(tmp_path / right)
    assert not (tmp_path / "a").exists()


def test_replaced_file_is_whole_with_permissions(
    tmp_path: Path,
) -> None:
    """A file is replaced as a whole and has the permissions of a new one."""
    path = tmp_path / "weights.safetensors"
    before = os.umask(0o027)
    try:
        for value in (1.0, 2.0):
            with replacing(path) as part:
                save_file({"x": torch.full((2,), value)}, part)
                assert part.parent == tmp_path
            assert load_file(path)["x"].tolist() == [value, value]
            assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
    # fails when the file is open
    with pytest.raises(UnicodeEncodeError), replacing(path) as part:
        part.write_text("half \ud800", encoding="utf-8")
    assert load_file(path)["x"].tolist() == [2.0, 2.0]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]

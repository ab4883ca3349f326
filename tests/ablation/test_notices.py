"""What a library says of a request, where several requests run at once."""

from __future__ import annotations

import logging
import threading

import pytest

from tsfm_lens.ablation.notices import said_once
from tsfm_lens.models import architectures, load

WORDS = "longer than it was trained for"


def test_a_request_keeps_its_own_words_alone_to_one(caplog: pytest.LogCaptureFixture) -> None:
    lens = load(architectures()["chronos"].tiny(), check=False)
    logger = logging.getLogger("chronos.a_module")
    said, done = threading.Event(), threading.Event()

    def request() -> None:
        with said_once(lens):
            logger.warning(WORDS)
            logger.warning(WORDS)
            said.set()
            done.wait(60)

    other = threading.Thread(target=request)
    other.start()
    try:
        assert said.wait(60)
        # what this thread says is none of the other's business
        logger.warning(WORDS)
        logger.warning(WORDS)
    finally:
        done.set()
        other.join()
    assert [record.getMessage() for record in caplog.records] == [WORDS] * 3

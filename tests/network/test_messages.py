"""Digests of bodies: every change is detected."""

import pytest

from dordis.errors import MalformedMessage
from dordis.network.messages import BodyInfo

DATA = bytes(range(256)) * 64


def test_the_digest_of_an_upload_detects_every_change_and_differs_each_time():
    info = BodyInfo.from_upload(DATA)
    assert info != BodyInfo.from_upload(DATA)
    for changed in (DATA[:-1], DATA + b"\0", DATA[:100] + b"\xff" + DATA[101:], b""):
        with pytest.raises(MalformedMessage, match="digest"):
            info.check_upload(changed)
    info.check_upload(memoryview(bytearray(DATA)))


def test_a_digest_that_is_too_short_is_refused():
    with pytest.raises(MalformedMessage, match="digest"):
        BodyInfo(len(DATA), b"short").check_upload(DATA)


def test_equal_downloads_have_one_digest_and_changes_are_detected():
    info = BodyInfo.from_download(DATA)
    assert info == BodyInfo.from_download(bytearray(DATA))
    info.check_download(DATA)
    with pytest.raises(MalformedMessage, match="digest"):
        info.check_download(DATA[:-1])

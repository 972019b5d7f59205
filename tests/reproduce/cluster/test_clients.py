"""Clients of an experiment: slow devices sleep for what they would take longer, lost ones decline to upload."""

import pytest

from dordis.errors import Aborted
from dordis.protocols.secagg.messages import AdvertiseKeys, CollectInput
from reproduce.cluster.clients import handle_slowly


class Request:
    """A request that uploads, or not."""

    def __init__(self, uploads):
        self.uploads = uploads


def make_handle(slowness, is_lost):
    slept, clock = [], iter([10.0, 10.5, 20.0, 20.25])
    handle = handle_slowly(
        lambda request: f"reply to {request.uploads}", slowness, is_lost, slept.append, clock.__next__
    )
    return handle, slept


def test_a_slow_device_sleeps_for_what_it_would_take_longer():
    handle, slept = make_handle(4.0, is_lost=False)
    assert [handle(Request(uploads)) for uploads in (False, True)] == ["reply to False", "reply to True"]
    assert slept == pytest.approx([1.5, 0.75])


def test_a_device_like_this_machine_does_not_sleep():
    handle, slept = make_handle(1.0, is_lost=False)
    handle(Request(uploads=False))
    assert slept == []


def test_a_lost_client_answers_all_but_uploads():
    handle, _ = make_handle(1.0, is_lost=True)
    assert handle(Request(uploads=False)) == "reply to False"
    with pytest.raises(Aborted, match="drops out before it uploads"):
        handle(Request(uploads=True))


def test_of_the_requests_of_secagg_only_that_for_the_input_uploads():
    assert (CollectInput.uploads, AdvertiseKeys.uploads) == (True, False)

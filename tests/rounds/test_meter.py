"""The meter of an exchange: bytes by client, direction and kind."""

from dordis.rounds.invitation import SendModel, SendSum, Train
from dordis.rounds.meter import MessageMeter, Traffic


def test_bytes_are_counted_by_client_direction_and_kind():
    meter = MessageMeter()
    for kind, size in ((SendModel, 100), (SendSum, 10), (Train, 1)):
        meter.count_request(1, kind, size)
    meter.count_request(2, SendModel, 1000)
    meter.count_reply(2, 5)
    assert meter.received == {1: 111, 2: 1000}
    assert meter.sent == {2: 5}
    assert meter.traffic() == Traffic(up=5, down=1111, models=1100, sums=10)


def test_meters_are_added():
    meter, other = MessageMeter(), MessageMeter()
    meter.count_request(1, Train, 1)
    other.count_request(1, Train, 2)
    other.count_reply(3, 4)
    meter.add(other)
    assert (meter.received, meter.sent) == ({1: 3}, {3: 4})


def test_the_difference_of_what_is_not_counted_is_not_counted():
    assert Traffic(5, None, 1, None).since(Traffic(1, 2, None, None)) == Traffic(4, None, None, None)

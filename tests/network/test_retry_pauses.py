"""Pauses before a failed round is tried again."""

from dordis.network.retry_pauses import RetryPauses


def test_pauses_between_tries_grow_and_start_anew_with_the_next_round():
    waited = []
    pauses = RetryPauses(2.0, waited.append)
    for _ in range(8):
        pauses.wait()
        pauses.start_attempt()
    pauses.end_round()
    pauses.wait()
    assert waited == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]

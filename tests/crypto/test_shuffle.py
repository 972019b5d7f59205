"""Shuffling is unbiased: words in the last, incomplete run of residues are skipped."""

from dordis.crypto.shuffle import below


def test_words_beyond_the_last_multiple_are_skipped():
    bound = 3 * 2**62
    assert below(bound, iter([2**64 - 1, bound, bound - 1])) == bound - 1

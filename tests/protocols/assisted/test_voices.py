"""The answers of a set of helpers: which helpers are asked, which value is confirmed, which helpers are liars."""

from itertools import product

from dordis.protocols.assisted.voices import SetValue, SetVoices

RIGHT, WRONG = SetValue(b"right", b""), SetValue(b"wrong", b"")


def settle(voices, wholes, digests, silent=()):
    """Ask until nobody is left to ask; `wholes` and `digests` say what each member answers."""
    while asked := voices.next_requests({}):
        for h, is_whole in asked.items():
            if h in silent:
                voices.silent.add(h)
            elif is_whole:
                voices.hear(h, bytes(wholes[h].masks), wholes[h])
            else:
                voices.hear(h, bytes(digests[h].masks))


def test_one_whole_and_f_digests_are_asked_for_and_more_only_if_they_disagree():
    voices = SetVoices(0, (1, 2, 3), 2)
    assert voices.next_requests({}) == {1: True, 2: False}
    assert voices.next_requests({1: 1}) == {2: True, 3: False}
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT))
    assert voices.value is RIGHT
    assert list(voices.said) == [1, 2]


def test_one_liar_of_three_never_wins_and_is_proved_if_it_was_heard():
    for liar, whole, digest in product((1, 2, 3), (RIGHT, WRONG), (RIGHT, WRONG)):
        voices = SetVoices(0, (1, 2, 3), 2)
        wholes, digests = dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT)
        settle(voices, wholes | {liar: whole}, digests | {liar: digest})
        assert voices.value is not None
        assert voices.value.masks == b"right"
        assert voices.liars <= {liar}
        if liar in voices.said and voices.said[liar] == b"wrong":
            assert voices.liars == {liar}


def test_a_right_digest_with_a_wrong_whole_proves_a_liar():
    voices = SetVoices(0, (1, 2, 3), 2)
    voices.hear(1, b"wrong", WRONG)
    voices.hear(2, b"right")
    assert voices.next_requests({}) == {3: False}
    voices.hear(3, b"right")
    assert voices.liars == {1}
    assert voices.next_requests({}) == {2: True}
    voices.hear(2, b"wrong", WRONG)
    assert voices.liars == {2}  # it gave two values; the first one of helper 3 stands alone
    assert voices.value is None
    assert voices.next_requests({}) == {}


def test_lost_members_are_replaced_and_too_few_end_the_search():
    voices = SetVoices(0, (1, 2, 3), 2)
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT), silent=(1,))
    assert voices.value is RIGHT
    voices = SetVoices(0, (1, 2, 3), 2)
    settle(voices, dict.fromkeys((1, 2, 3), RIGHT), dict.fromkeys((1, 2, 3), RIGHT), silent=(1, 2))
    assert voices.value is None
    assert not voices.liars


def test_one_voice_suffices_where_parties_follow_the_protocol():
    voices = SetVoices(0, (2, 3), 1)
    assert voices.next_requests({}) == {2: True}
    voices.silent.add(2)
    assert voices.next_requests({}) == {3: True}

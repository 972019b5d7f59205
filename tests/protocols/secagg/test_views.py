"""A malicious server that shows clients different sets learns only the sum over all honest survivors without masks.

This is the counting argument of docs/proofs/malicious.md, tried for every view: for each coordinate the server learns
the combinations a of uploads with a_u [u was shown v] = a_v [v was shown u] for every pair of honest survivors.
"""

from itertools import combinations, product

import pytest


def subsets(items, least):
    return [frozenset(some) for size in range(least, len(items) + 1) for some in combinations(items, size)]


def partial_sums(shown):
    """Return the sets of clients whose sum alone is free of masks, given whom each of them was shown."""
    left, found = set(shown), []
    while left:
        group, frontier, free = set(), {min(left)}, True
        while frontier:
            u = frontier.pop()
            group.add(u)
            for v in shown.keys() - {u}:
                if v in shown[u] and u in shown[v]:
                    frontier |= {v} - group
                elif v in shown[u] or u in shown[v]:
                    free &= v not in shown[u]  # a mask of u that v does not have stays for ever
        left -= group
        if free:
            found.append(frozenset(group))
    return found


def leaks(n, colluders, t):
    """Yield every U3 and every view with which a quorum signs, and part of the honest survivors can be summed alone."""
    everyone, corrupt = frozenset(range(n)), frozenset(range(n - colluders, n))
    for u3 in subsets(everyone, t):
        honest = sorted(u3 - corrupt)
        views = [[u2 for u2 in subsets(everyone, t) if u in u2] for u in honest]
        for chosen in product(*views):
            signers = len(u3 & corrupt) + sum(u3 <= u2 for u2 in chosen)
            if signers >= t:
                shown = {u: u2 & frozenset(honest) for u, u2 in zip(honest, chosen, strict=True)}
                yield from ((u3, chosen) for part in partial_sums(shown) if len(part) < len(honest))


def quorum(n, colluders):
    return (n + colluders) // 2 + 1


@pytest.mark.parametrize(("n", "colluders"), [(3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1), (5, 2)])
def test_no_views_open_a_part_of_the_sum(n, colluders):
    assert not any(leaks(n, colluders, quorum(n, colluders)))


@pytest.mark.parametrize(("n", "colluders"), [(4, 0), (4, 2), (5, 1)])
def test_with_a_quorum_of_one_less_some_views_do(n, colluders):
    t = quorum(n, colluders) - 1
    assert 2 * t <= n + colluders
    assert any(leaks(n, colluders, t))


def test_what_masks_leave_open_is_found_by_hand():
    assert partial_sums({0: {0, 1}, 1: {0, 1}, 2: {2}}) == [{0, 1}, {2}]
    assert partial_sums({0: {0, 1}, 1: {1}}) == [{1}]
    assert partial_sums({0: {0, 1, 2}, 1: {0, 1, 2}, 2: {0, 1, 2}}) == [{0, 1, 2}]

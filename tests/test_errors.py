"""The tree of errors: its drawing is the tree, and no error shows its arguments' secrets."""

import inspect
import re

import pytest

from dordis import errors
from dordis.errors import DordisError, InputError, MissingExtra, ParametersRefused, ProtocolError, RoundFailed


def drawn():
    """Return the drawing in the docstring as pairs of a class and its parent."""
    pairs, path = [], []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([ │├└─]*)(\w+)(?:  |$)", line)
        if found and (found[1] or found[2] == "DordisError"):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            pairs.append((found[2], path[depth - 1] if depth else "Exception"))
    return pairs


def test_the_drawing_is_the_tree():
    classes = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, DordisError)]
    assert len(classes) > 20
    assert sorted(drawn()) == sorted((kind.__name__, kind.__bases__[0].__name__) for kind in classes)


def test_wrong_arguments_are_value_errors_and_a_peers_deviation_is_not():
    assert issubclass(InputError, ValueError)
    assert issubclass(ParametersRefused, InputError)
    assert not issubclass(ProtocolError, InputError | RoundFailed)


def test_a_missing_extra_says_what_to_install():
    error = MissingExtra("torch")
    assert error.extra == "torch"
    assert re.search(r"pip install .*\[torch\]", str(error))


@pytest.mark.parametrize("kind", [errors.TooFewClients, errors.TooManyDropouts])
def test_failed_rounds_name_the_clients_that_caused_them(kind):
    arguments = ("Unmask", 2, 3) if kind is errors.TooFewClients else (2, 1)
    assert kind(*arguments, frozenset({7})).named == {7}

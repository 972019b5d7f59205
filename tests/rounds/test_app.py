"""Applications are made from the options of a configuration."""

import numpy as np
import pytest

from dordis.errors import InputError
from dordis.rounds.app import AppClient, AppServer, Task, update_lengths


class Server(AppServer):
    def __init__(self, size, name="x"):
        self.size, self.name = size, name

    @property
    def dim(self):
        return self.size

    def use_output(self, round, aggregate):
        pass


class Client(AppClient):
    def __init__(self, place, size, name="x"):
        self.place, self.size = place, size

    def prepare_data(self, round, model):
        return np.zeros(self.size)


def test_options_are_arguments():
    task = Task({"size": 3, "name": "y"}, population=2)
    server, client = Server.from_task(task), Client.from_task(task, 1)
    assert (server.dim, server.name, client.place, client.size) == (3, "y", 1, 3)


@pytest.mark.parametrize("options", [{}, {"size": 3, "colour": "red"}])
def test_options_that_do_not_fit_are_one_clear_error(options):
    with pytest.raises(InputError, match="options of Server do not fit"):
        Server.from_task(Task(options, population=2))
    with pytest.raises(InputError, match=r"options of Client do not fit: .*its zero-based index"):
        Client.from_task(Task(options, population=2), 0)


def test_an_error_inside_a_constructor_is_not_hidden():
    class Broken(Server):
        def __init__(self, size):
            raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        Broken.from_task(Task({"size": 1}, population=1))


def test_a_server_has_no_model_no_metrics_and_no_state_unless_it_says_so():
    server = Server(3)
    assert (server.model().size, server.evaluate(), dict(server.state())) == (0, {}, {})


def test_the_length_of_a_model_is_that_of_its_numbers_whatever_array_it_is():
    class Tensor:
        """An array like torch's, whose `size` is a method."""

        def size(self):
            return (2, 3)

        def __array__(self, dtype=None, copy=None):
            return np.zeros((2, 3), dtype)

    class Modelled(Server):
        def model(self):
            return Tensor()

    assert Modelled(3).model_lengths == (6,)


def test_lengths_of_updates_are_whole_numbers_of_any_type():
    assert update_lengths(Server(np.int64(3))) == (3,)
    assert type(update_lengths(Server(np.int64(3)))[0]) is int
    for size in ("3", 3.0, None, lambda: 3):
        with pytest.raises(InputError, match=r"dim and dims of Server return lengths of updates, .*whole numbers"):
            update_lengths(Server(size))


def test_a_model_may_be_a_list():
    class Listed(Server):
        def model(self):
            return [0.0, 1.0]

    assert Listed(3).model_lengths == (2,)


def test_a_class_that_lacks_a_method_is_named():
    class Unfinished(AppServer):
        pass

    with pytest.raises(InputError, match="Unfinished is not complete: it lacks dim, use_output"):
        Unfinished.from_task(Task({}, population=1))

"""A client trains only so often until a round counts it, whatever is restarted."""

import pytest

from dordis.errors import InputError, ParametersRefused
from dordis.federation.client_directory import ClientDirectory
from dordis.federation.policy import Policy
from dordis.federation.trainings import FileTrainings, MemoryTrainings


@pytest.fixture(params=["memory", "file"])
def counts(request, tmp_path):
    """Return what gives the count, again after a restart."""
    kept = MemoryTrainings()
    return lambda: kept if request.param == "memory" else FileTrainings(tmp_path / "trainings")


def test_a_training_beyond_the_bound_is_refused_and_a_participation_begins_anew(counts):
    for participations in (0, 1, 5):
        for _ in range(3):
            counts().begin(participations, most=3)
        for _ in range(2):
            with pytest.raises(ParametersRefused, match=r"line 'trainings'.*trained 3 times"):
                counts().begin(participations, most=3)


def test_without_a_bound_nothing_is_counted(counts):
    for _ in range(20):
        counts().begin(0, most=None)
    counts().begin(0, most=1)


def test_the_count_is_in_the_directory_of_the_client_and_a_damaged_one_refuses(tmp_path):
    ClientDirectory(tmp_path).trainings.begin(2, most=3)
    assert (tmp_path / "trainings").read_text() == "2 1\n"
    (tmp_path / "trainings").write_text("2 x\n")
    with pytest.raises(InputError, match="does not hold two numbers"):
        ClientDirectory(tmp_path).trainings.begin(2, most=3)


def test_a_policy_bounds_trainings_by_default():
    assert Policy().trainings == 10
    with pytest.raises(InputError, match="0 or more"):
        Policy(trainings=-1)

"""An application with updates of a few coordinates, for runs that only show how epsilon grows."""

from typing import Self

import numpy as np

from dordis.privacy.scaling import Floats
from dordis.protocols.encoded_sums import Aggregate
from dordis.rounds.app import AppClient, AppServer, RoundInfo, Task
from dordis.rounds.model import Numbers

DIM = 16


class Server(AppServer):
    """A server that makes no use of the sums."""

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Ignore the options of the preset."""
        return cls()

    @property
    def dim(self) -> int:
        """Return the length of an update."""
        return DIM

    def use_output(self, round: RoundInfo, aggregate: Aggregate) -> None:
        """Ignore the sum."""


class Client(AppClient):
    """A client whose update is zero."""

    @classmethod
    def from_task(cls, task: Task, place: int) -> Self:
        """Ignore the options of the preset."""
        return cls()

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Return zeros."""
        return np.zeros(DIM)

"""The toy application, which can pause before and after each thing that its server does in a round."""

from tests.paused_processes import pause_at
from tests.simulation import toys


class Server(toys.Server):
    """Name the points by what comes next, and by how many rounds are done."""

    def model(self):
        pause_at(f"model {self.rounds}")
        return super().model()

    def use_output(self, *arguments):
        pause_at(f"use_output {self.rounds}")
        super().use_output(*arguments)

    def evaluate(self):
        pause_at(f"evaluate {self.rounds}")
        return super().evaluate()

    def state(self):
        pause_at(f"state {self.rounds}")
        return super().state()

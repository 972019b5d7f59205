"""The toy application, which can be held before and after each thing that its server does in a round."""

from tests.held import hold
from tests.simulation import toys


class Server(toys.Server):
    """Name the points by what comes next, and by how many rounds are done."""

    def model(self):
        hold(f"model {self.rounds}")
        return super().model()

    def use_output(self, *arguments):
        hold(f"use_output {self.rounds}")
        super().use_output(*arguments)

    def evaluate(self):
        hold(f"evaluate {self.rounds}")
        return super().evaluate()

    def state(self):
        hold(f"state {self.rounds}")
        return super().state()

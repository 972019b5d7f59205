"""A torch model of your own, trained privately (pip install 'dordis[torch]'); from this folder:

dordis run -c app.options.model=your_torch_model:Net -c app.options.lr=1.0 -c simulation.fidelity=ideal
"""

import torch


class Net(torch.nn.Sequential):
    """Any module from inputs (n, features) to scores (n, classes); one with statistics, like BatchNorm, is refused."""

    def __init__(self, features: int, classes: int, hidden: int = 16) -> None:
        super().__init__(
            torch.nn.Linear(features, hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(hidden, classes),
        )

"""A model of your own, trained privately: from this folder, `dordis run -c app.options.model=your_model:Template`.

A model is a function of one flat vector of parameters. This one keeps a template of every class and says the class
whose template an input is most like; the loss is the squared distance to the template of its own class.
"""

import numpy as np

from dordis.apps.learning import Model


class Template(Model):
    """Made with the number of features and of classes; further arguments come from app.options.options."""

    def __init__(self, features: int, classes: int, sharpness: float = 1.0) -> None:
        self.shape, self.sharpness = (classes, features), sharpness

    @property
    def dim(self) -> int:
        return self.shape[0] * self.shape[1]

    def gradient(self, parameters, x, y, offset):
        """Return the gradient of the mean loss over the inputs x, (n, features), with labels y."""
        templates, slope = parameters.reshape(self.shape), np.zeros(self.shape)
        np.add.at(slope, y, (templates[y] - x) / y.size)
        return slope.ravel()

    def scores(self, parameters, x):
        """Return the score of each class, (n, classes): the highest is what the model says."""
        templates = parameters.reshape(self.shape)
        return -self.sharpness * ((x[:, None] - templates) ** 2).sum(axis=2)

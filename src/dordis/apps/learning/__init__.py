"""Federated learning: data, their partition among clients, models, training, and the server's optimisers."""

from dordis.apps.learning.app import Client, Server, Settings
from dordis.apps.learning.models import Model

__all__ = ["Client", "Model", "Server", "Settings"]

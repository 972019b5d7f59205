"""Federated learning: data, their partition among clients, models, training, and the server's optimisers."""

from dordis.apps.learning.app import Client, Server
from dordis.apps.learning.models import Model
from dordis.apps.learning.settings import Settings

__all__ = ["Client", "Model", "Server", "Settings"]

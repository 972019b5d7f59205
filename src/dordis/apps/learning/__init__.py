"""Federated learning: data sets, their partition among clients, models, local training, and server optimisers."""

from dordis.apps.learning.app import Client, Server
from dordis.apps.learning.models import Model
from dordis.apps.learning.settings import Settings

__all__ = ["Client", "Model", "Server", "Settings"]

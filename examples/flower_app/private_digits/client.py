"""The ClientApp: an ordinary train function; the mod makes its updates private."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dordis.integrations.flower import dordis_mod
from private_digits.task import train

app = ClientApp(mods=[dordis_mod])  # without dordis: app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    """Train on the data of this node."""
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    place, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    weights = train(weights, place, clients, context.run_config["learning-rate"], context.run_config["epochs"])
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics}), reply_to=message)

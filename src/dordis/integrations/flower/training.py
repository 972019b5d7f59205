"""The train function of a ClientApp as an application of dordis: one update of all data, or gradients of records.

With clients as the unit of privacy, the update is the difference between the model that the train function returns and
the model that it received.  With records as the unit, the train function returns `train_step(message, module, x, y)`,
and the gradient of each record is computed here.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Context, RecordDict
from flwr.app import Message as FlowerMessage

from dordis.errors import InputError
from dordis.integrations.flower.messages import RECORD, Layout, digest_received, find_model
from dordis.integrations.flower.pins import Pins
from dordis.privacy.encoding import Reals
from dordis.privacy.scaling import Floats
from dordis.rounds.app import AppForm, RoundInfo
from dordis.rounds.model import DTYPES, LastModel, ModelBytes, Numbers
from dordis.rounds.records import Attempt, Places, RecordClient
from dordis.rounds.user_code import contain

if TYPE_CHECKING:
    from dordis.apps.learning.record_gradients import RecordLearner

log = logging.getLogger("dordis.flower")

CallNext = Callable[[FlowerMessage, Context], FlowerMessage]


@dataclass(frozen=True)
class RecordStep:
    """The arguments of `train_step`: a torch module, and the records whose gradients are computed with it."""

    module: Any
    x: Any
    y: Any
    keys: Sequence[Any] | None
    target: Any


class StepReply(FlowerMessage):
    """The result of `train_step`: the mod reads `step` from it, and sends none of it to the server."""

    def __init__(self, request: FlowerMessage, step: RecordStep) -> None:
        super().__init__(RecordDict(), reply_to=request)
        self.step = step


def train_step(
    message: FlowerMessage,
    module: Any,
    x: Any,
    y: Any,
    *,
    keys: Sequence[Any] | None = None,
    target: str = "classification",
) -> FlowerMessage:
    """Return the reply of a train function if records are the unit of privacy; from it the mod computes a DP-SGD step.

    `module` is a torch module for the parameters in the message, whose values the mod reads from the message itself.
    `x` and `y` are all records of the node, as arrays or tensors, from which the mod samples.  Rows with equal `keys`
    are one record.  The loss follows from `target`: "classification", "regression" or "next-token".  Neither the form
    of the module nor the records may depend on the values in the message.
    """
    return StepReply(message, RecordStep(module, x, y, keys, target))


class FlowerApp(RecordClient):
    """The app's train function as the client's application of dordis, for one Flower message."""

    def __init__(self, message: FlowerMessage, context: Context, call_next: CallNext) -> None:
        self._message, self._context, self._call_next = message, context, call_next

    @cached_property
    def received_digest(self) -> ModelBytes:
        """Return the digest of the train message as `ModelBytes`: a round of dordis has this in place of a model.

        The invitation in the same message must contain this digest.
        """
        return digest_received(self._message, self._context)

    def model_vector(self) -> Floats:
        """Return the model in the message as a vector of its floating-point numbers."""
        _, model = find_model(self._message.content)
        return Layout.from_record(model).to_vector(model)

    def form(self) -> AppForm | None:
        """Return the lengths of the digest and of an update, which invitations must have; None without a model."""
        if not self._message.content.array_records:
            return None
        return AppForm(DTYPES[0], frozenset({len(self.received_digest.array)}), frozenset({len(self.model_vector())}))

    def models(self) -> LastModel:
        """Return a model cache with the digest of the train message, which dordis treats as the round's model.

        The parameters themselves come in the train message.  The cache is empty if the message has no model.
        """
        models = LastModel()
        if self._message.content.array_records:
            models.keep(self.received_digest)
        return models

    def prepare_data(self, round: RoundInfo, model: Numbers) -> Floats:
        """Call the train function with the strategy's message; return the model's change times the node's weight."""
        _, model_record = find_model(self._message.content)
        layout = Layout.from_record(model_record)
        before = layout.to_vector(model_record)  # taken before training, because the app may change the message
        reply = self._train()
        if isinstance(reply, StepReply):
            raise InputError("train_step is for privacy.unit = 'record': return a trained model for 'client'")
        if reply.has_error():
            raise InputError(f"the train function of this node failed: {reply.error.reason}")
        _, after = find_model(reply.content)
        update: Floats = np.subtract(layout.to_vector(after), before)
        return update * Pins(self._context.node_config).weight()

    def _train(self) -> FlowerMessage:
        """Call the train function with the train message without the record of dordis, and return its reply."""
        content = RecordDict({name: record for name, record in self._message.content.items() if name != RECORD})
        return self._call_next(FlowerMessage(content, metadata=self._message.metadata), self._context)

    @property
    def records(self) -> int:
        """Return the number of records of the node."""
        return self._learner.records

    @property
    def width(self) -> int:
        """Return the number of records whose gradients are computed together."""
        return self._learner.width

    def begin(self, round: RoundInfo, model: Numbers, dim: int, attempt: Attempt) -> None:
        """Test, at the first call, whether records that are computed together influence each other's gradients.

        If they do, compute one gradient at a time from then on.  `attempt` calls the app's code and handles errors.
        """
        self._learner.begin(round, self._parameters, dim, attempt)

    def record_gradients(self, round: RoundInfo, model: Numbers, places: Places) -> Reals:
        """Return one row for each index in `places`: that record's negative gradient, or anything for a `DUMMY` index.

        `model` is the digest of the message, so the parameters are read from the message instead.
        """
        return self._learner.record_gradients(round, self._parameters, places)

    @cached_property
    def step(self) -> RecordStep:
        """Call the train function, and return the arguments with which it called `train_step`.

        Raise InputError if the train function fails, or does not return the result of `train_step`.  Only the owner's
        log has the error of the train function itself.
        """
        reply = contain("the train function", self._train, log.error)
        if reply is None:
            raise InputError("the train function of this node failed: its log says why")
        if not isinstance(reply, StepReply):
            raise InputError(
                "with privacy.unit = 'record' a train function returns train_step(message, module, x, y), from which "
                "the gradient of each record is computed; this one makes one update of all records, in which the part "
                "of a single record is not bounded"
            )
        return reply.step

    @cached_property
    def _parameters(self) -> Floats:
        return self.model_vector()

    @cached_property
    def _learner(self) -> "RecordLearner":
        from dordis.apps.learning.record_gradients import RecordLearner
        from dordis.apps.learning.torch_model import TorchModel

        step = self.step
        model = TorchModel(step.module, step.target)
        _, record = find_model(self._message.content)
        check_same_parameters(Layout.from_record(record), model.shapes)
        learner = contain(
            "reading the records of train_step",
            lambda: RecordLearner(model, (np.asarray(step.x), np.asarray(step.y)), step.keys),
            log.error,
        )
        if learner is None:
            raise InputError("the records of this node cannot be used: its log says why")
        return learner

    def check_declared(self, declared: int) -> None:
        """Raise InputError if the node has more than `declared` records; only the owner's log has the true number."""
        if self.records > declared:
            log.error("this node holds %d records, and privacy.records is %d", self.records, declared)
            raise InputError(f"this node holds more than {declared} records: set privacy.records to a larger number")


def check_same_parameters(layout: Layout, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise InputError unless the message's arrays have the shapes of the parameters that the module trains, by name or
    numbered from 0 on.
    """
    numbered = list(map(str, range(len(shapes))))
    if list(layout.shapes) not in (list(shapes), numbered) or list(layout.shapes.values()) != list(shapes.values()):
        raise InputError(
            "the arrays of the train message are not the parameters of the module in train_step: begin with "
            "ArrayRecord(module.state_dict()) of the same module, without its frozen parameters and its buffers"
        )


def check_record_ids(step: RecordStep, column: str) -> None:
    """Raise InputError unless `train_step` got the argument `keys` if and only if `column` (`privacy.record`) is set.

    With `keys`, a record is all rows with the same key; without, one row.  The stated epsilon is that of a record.
    """
    if (step.keys is not None) != bool(column):
        said = f"the run states epsilon for one '{column}'" if column else "the run states epsilon for one row"
        raise InputError(
            f"{said}, and train_step was called {'without' if column else 'with'} keys: set privacy.record to what the "
            "keys name, or leave both out"
        )

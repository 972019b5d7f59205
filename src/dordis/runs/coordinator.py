"""The coordinator: it runs one round after the other, from the invitation of clients to the use of the sum.

Where the clients are and how messages travel is left to the `RoundRunner`.  The ledger is charged before the server
asks for any disclosure.
"""

import math
import operator
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from dordis.errors import InputError
from dordis.ledger.ledger import Ledger
from dordis.ledger.receipt import FIRST, Receipt
from dordis.pipeline.performance_model import AutoChunks
from dordis.privacy.clipping import CLIPPING_BIT, Clipping, fraction_below
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.projection import Alignment
from dordis.protocol import ClientId
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.records.run_records import (
    Evictions,
    FailedAttempt,
    RoundMetrics,
    RoundRecord,
    is_reserved_metric,
    timestamp,
)
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.engine import AgreedRound, Gathered, InterruptedRound, RoundResult, RoundRunner
from dordis.rounds.invitation import Invitation, Invite
from dordis.rounds.model import ModelBytes, check_trained
from dordis.rounds.watch import AttemptBegan, StageBegan, Watch, silent
from dordis.runs.budget import RunBudget, check_events
from dordis.runs.plan import RoundPlan
from dordis.runs.retry import TRIES, attempt, sum_and_evict
from dordis.selection.beacon import Beacon
from dordis.selection.selection import SelectedClients, Selection

USE_OUTPUT = "use output"
"""The stage in which the application uses the sum and evaluates the model."""


@dataclass(frozen=True)
class FinishedRound:
    """A finished round, ready to be recorded."""

    record: RoundRecord
    metrics: RoundMetrics
    receipt: Receipt
    result: RoundResult = field(repr=False)
    parameters: Parameters = field(repr=False)


@dataclass(frozen=True)
class _Summed:
    """A round whose sum is known and not yet used by the application."""

    invited: int
    gathered: Gathered
    agreed: AgreedRound
    design: RoundPlan
    result: RoundResult


@dataclass(frozen=True)
class InvitedRound:
    """A round to which clients were invited, and for which the ready clients have trained."""

    planned: RoundPlan
    invitation: Invitation
    gathered: Gathered


class EarlyInvitation:
    """The invitation to the next round, sent in a thread of its own while the server evaluates the present round.

    Clients train meanwhile.  This thread neither counts nor charges anything: the coordinator counts and charges the
    next round in its own thread, when the present round is on disk.  The process can end before this thread has ended.
    """

    def __init__(self, invite: Callable[[], InvitedRound]) -> None:
        self.began = timestamp(), time.perf_counter()
        self._invite, self._invited = invite, Future[InvitedRound]()
        threading.Thread(target=self._run, name="dordis invitation", daemon=True).start()

    def _run(self) -> None:
        try:
            self._invited.set_result(self._invite())
        except BaseException as error:  # noqa: BLE001  `result` raises it
            self._invited.set_exception(error)

    def result(self) -> InvitedRound:
        """Wait for the clients, and return the invited round; if the invitation failed, raise its error."""
        return self._invited.result()


class Coordinator:
    """Runs the rounds of one run; with `ledger` None the run has no epsilon, and nothing is charged.

    `counts_owners` tells whether owners count participations; for queries over a table they do not.  `on_failure` is
    called with each failed attempt before the next attempt, `on_receipt` with each receipt before the next round's
    invitations.  `last_receipt` is the hash of the newest receipt of the run when the coordinator is created.
    `registry` is the registry's root.
    """

    def __init__(
        self,
        run: bytes,
        app: AppServer,
        design: RoundPlan,
        selection: Selection,
        rounds: RoundRunner,
        ledger: Ledger | None,
        *,
        registry: bytes = b"",
        beacon: Beacon | None = None,
        watch: Watch = silent,
        tries: int = TRIES,
        chunks: int | AutoChunks = 1,
        protocol: str = "",
        clipping: Clipping | None = None,
        alignment: Alignment | None = None,
        interrupted: InterruptedRound[Any] | None = None,
        evictions: Evictions | None = None,
        entropy: Entropy = secrets.token_bytes,
        counts_owners: bool = True,
        on_failure: Callable[[FailedAttempt], None] = lambda failed: None,
        on_receipt: Callable[[Receipt], None] = lambda receipt: None,
        last_receipt: str = FIRST,
    ) -> None:
        self._budget = RunBudget(run, ledger, counts_owners)
        self._run, self._app, self._design = run, app, design
        self._selection, self._rounds, self._ledger = selection, rounds, ledger
        self._registry, self._beacon, self._watch = registry, beacon, watch
        self._tries, self._chunks, self._protocol, self._entropy = tries, chunks, protocol, entropy
        self._clipping, self._alignment = clipping or Clipping(design.setting.clip), alignment
        self._evictions = Evictions() if evictions is None else evictions
        self._on_failure, self._on_receipt, self._last_receipt = on_failure, on_receipt, last_receipt
        self._count = 1
        self._interrupted = interrupted
        self._early: EarlyInvitation | None = None

    def rounds(self, count: int, done: int = 0, index: int = 0, *, early: bool = False) -> Iterator[FinishedRound]:
        """Run rounds until `count` are finished; `done` are finished already, and `index` is the first unused index.

        With `early`, clients of the next round are invited and train while the application evaluates a round and the
        caller stores it.  Nothing of the next round is counted or charged before the caller asks for it.  Raise
        `BudgetExceeded` before a round that would exceed the budget, or that too few clients can afford.
        """
        self._count = count
        # After a restart the first evaluation runs alone: if it fails after every restart, no client trains in vain.
        first_early = done + 2 if index else 1
        for number in range(done + 1, count + 1):
            used = self._use_sum(number, index)
            index = max(index, used.record.index + 1)  # a resumed round may have an index below `index`
            if early and number >= first_early and number < count and self._design.agreement.has_cohort:
                self._early = EarlyInvitation(partial(self._invite, RoundInfo(number + 1, index, self._run)))
            yield self._evaluate(used)

    def round(self, number: int, index: int) -> FinishedRound:
        """Run round `number` under this index and, if it fails, under the next indices; return the finished round."""
        return self._evaluate(self._use_sum(number, index))

    def _use_sum(self, number: int, index: int) -> FinishedRound:
        """Run round `number`, from this index on, until its sum is used; return the round without the metrics."""
        self._count = max(self._count, number)
        began, started = (timestamp(), time.perf_counter()) if self._early is None else self._early.began
        if self._interrupted is not None and self._interrupted.number == number:
            index = self._interrupted.parameters.index
        attempted = attempt(
            lambda i: self._sum(RoundInfo(number, i, self._run)),
            index,
            self._tries,
            lambda failure: self._on_failure(failure.record(self._evictions)),
        )
        summed = attempted.output
        parameters, result = summed.agreed.parameters, summed.result
        if self._ledger is not None:
            self._ledger.complete(parameters.index, result.outputs)
        below = fraction_below(result.aggregate.further.get(CLIPPING_BIT))
        self._clipping = self._clipping.advance(below)
        observed = summed.design.alignment(result.outputs, result.aggregate)
        if observed is not None:
            self._alignment = observed if self._alignment is None else self._alignment.average_with(observed)
        used, noise = time.perf_counter(), summed.design.noise(result.outputs)
        self._watch(StageBegan(USE_OUTPUT))
        deviation = 0.0 if noise is None else math.sqrt(noise.left) / summed.design.mechanism.grid.scale
        clip = parameters.encoding.clip or math.inf
        info = RoundInfo(number, parameters.index, self._run, clip, deviation)
        self._app.use_output(info, result.aggregate)
        stages = {**summed.gathered.stages, **result.stages, USE_OUTPUT: time.perf_counter() - used}
        spent, head = (None, "") if self._ledger is None else self._ledger.spent()
        record = RoundRecord(
            number=number,
            index=parameters.index,
            started=began,
            seconds=time.perf_counter() - started,
            stages=stages,
            invited=summed.invited,
            clients=tuple(int(u) for u in result.clients),
            survivors=tuple(len(output.survivors) for output in result.outputs),
            dropped=dict(result.dropped),
            up=_added(summed.gathered.up, result.up),
            down=_added(summed.gathered.down, result.down),
            model_bytes=summed.gathered.model_bytes,
            replay_bytes=summed.gathered.replay_bytes,
            wanted=None if noise is None else noise.wanted,
            left=None if noise is None else noise.left,
            charged=None if noise is None else noise.charged,
            epsilon=spent,
            failures=tuple(failure.record(self._evictions) for failure in attempted.failures),
            evicted=self._evictions.after(parameters.index),
            dim=summed.design.setting.dim,
            buckets=summed.design.setting.buckets,
            alignment=self._alignment,
            clip=parameters.encoding.clip or None,
            below=below,
            sum_check=result.sum_check,
        )
        known = self._protocol, spent, head, self._last_receipt, record.clients
        self._last_receipt = (receipt := Receipt.from_round(parameters, result.outputs, *known)).digest
        self._on_receipt(receipt)
        costs = RoundMetrics(number, summed.design.costs(result.outputs))
        return FinishedRound(record, costs, receipt, result, parameters)

    def _evaluate(self, used: FinishedRound) -> FinishedRound:
        """Evaluate the model after a round, and return the round with its metrics.

        If the next invitation is under way already, the round's `seconds` do not include the evaluation.
        """
        started, record = time.perf_counter(), used.record
        values = check_finite(self._app.evaluate(), record.number) | used.metrics.values
        took = time.perf_counter() - started
        stages = record.stages | {USE_OUTPUT: record.stages[USE_OUTPUT] + took}
        seconds = record.seconds + (took if self._early is None else 0.0)
        record = msgspec.structs.replace(record, stages=stages, seconds=seconds)
        return replace(used, record=record, metrics=RoundMetrics(record.number, values))

    def _sum(self, info: RoundInfo) -> _Summed:
        """Make one attempt at a round: invite clients, fix the parameters, check the budget, and return the sum."""
        before, self._interrupted = self._interrupted, None
        resumed = before is not None and (before.number, before.parameters.index) == (info.number, info.index)
        if before is not None and resumed:
            self._begin_attempt(info)
            proofs: Mapping[ClientId, bytes] = before.proofs
            gathered, invited, parameters = Gathered({}), before.invited, before.parameters
            planned = self._next_design().for_cost(before.allowed).for_clip(self._clipping.bound)
            design = planned.for_clients(parameters.n_max)
            invitation = None
            if not parameters.clients:
                invitation = self._invitation(info, planned, self._candidates(info)[0], self._model())
        else:
            early, self._early = self._early, None
            ready = self._invite(info) if early is None else early.result()
            planned, invitation, gathered = ready.planned, ready.invitation, ready.gathered
            invited = len(invitation.clients)
            parameters, design, proofs = self._agree(info, invitation.model, gathered, planned)
        if not resumed:
            self._budget.check_round(design, parameters)
        agreed = AgreedRound(
            parameters,
            design.mechanism,
            proofs,
            self._budget.gate(design, parameters, resumed),
            info.number,
            invited,
            planned.allowed,
            None if parameters.clients else invitation,
            self._selection.verify_client,
            design.agreement.all_colluders,
        )
        result = sum_and_evict(self._rounds, agreed, self._evictions, self._watch)
        if isinstance(self._chunks, AutoChunks) and result.timeline is not None:
            self._chunks = self._chunks.observe(design.mechanism.grid.padded, result.timeline)
        return _Summed(invited, gathered, agreed, design, result)

    def _begin_attempt(self, info: RoundInfo) -> None:
        """Notify the observers of an attempt; raise EventsUsedUp if a run with sampled records has no event left."""
        check_events(info.index, self._design)
        self._watch(AttemptBegan(info.number, info.index))

    def _invite(self, info: RoundInfo) -> InvitedRound:
        """Invite clients and let them train; nothing is counted or charged."""
        self._begin_attempt(info)
        model = self._model()  # before the candidates: this may take long, and more clients may connect meanwhile
        candidates, affordable = self._candidates(info)
        planned = self._next_design()
        if self._ledger is not None and planned.counts:
            planned = planned.for_cost(planned.allowed if affordable is None else affordable)
        planned = planned.for_clip(self._clipping.bound)
        invitation = self._invitation(info, planned, candidates, model)
        return InvitedRound(planned, invitation, self._rounds.gather(invitation, self._watch))

    def _candidates(self, info: RoundInfo) -> tuple[tuple[ClientId, ...], float | None]:
        """Return the clients to invite, and the largest cost that each of them can afford (None without clients)."""
        present = frozenset(self._rounds.available(info.index)) - self._evictions.clients
        left = self._count - info.number + 1
        able = self._budget.affordable_costs(self._design, present, self._selection, info.index, left)
        candidates = self._selection.candidates(info.index, able)
        return candidates, min((able[u] for u in candidates), default=None)

    def _model(self) -> ModelBytes:
        """Return the application's model, from which clients train next; raise Diverged if training diverged."""
        return check_trained(ModelBytes.from_numbers(self._app.model(), self._app.dtype))

    def _invitation(
        self, info: RoundInfo, design: RoundPlan, candidates: tuple[ClientId, ...], model: ModelBytes
    ) -> Invitation:
        """Return an invitation whose terms hold for every cohort that can be formed from the candidates."""
        invite = Invite(
            round=self._run + info.index.to_bytes(INDEX_BYTES, "big"),
            number=info.number,
            protocol=self._protocol,
            registry=self._registry,
            dim=design.setting.dim,
            terms=design.promise(self._design.least),
            model=model.digest,
            model_bytes=len(model.data),
            dtype=model.dtype,
        )
        return Invitation(invite, model, candidates)

    def _next_design(self) -> RoundPlan:
        """Return the round plan for the update length of the next round."""
        check_planned(self._app.dim, self._app.dims)
        return self._design.for_dim(operator.index(self._app.dim)).for_alignment(self._alignment)

    def _agree(
        self, info: RoundInfo, model: ModelBytes, gathered: Gathered, planned: RoundPlan
    ) -> tuple[Parameters, RoundPlan, Mapping[ClientId, bytes]]:
        """Select a round's clients from the ready clients; return its parameters, plan and proofs of selection."""
        if self._design.agreement.has_cohort:
            present = self._rounds.still_ready(gathered.ready.keys())
            ready = {u: proof for u, proof in gathered.ready.items() if u in present}
            selected = self._selection.select(info.index, ready.keys(), ready)
            design = planned.for_clients(len(selected.clients))
        else:
            selected, design = SelectedClients(()), planned
        parameters = design.agree_on(
            run=self._run,
            index=info.index,
            clients=selected.clients,
            rotation=self._entropy(SEED_BYTES),
            model=model.digest,
            beacon=b"" if self._beacon is None else self._beacon.value(info.index),
            chunks=self._next_chunks(design),
            introductions=gathered.introductions,
        )
        return parameters, design, selected.proofs

    def _next_chunks(self, design: RoundPlan) -> int:
        """Return the number of chunks of the next round: as configured, or chosen by the times of earlier rounds."""
        grid = design.mechanism.grid
        if isinstance(self._chunks, AutoChunks):
            return self._chunks.choose_chunks(grid.padded, grid.blocks)
        return min(self._chunks, grid.blocks)


def _added(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def check_planned(dim: int, dims: Collection[int]) -> None:
    """Raise InputError for an update length that the application did not declare in its `dims`."""
    if dim not in dims:
        raise InputError(
            f"the application's next update has {dim} coordinates, and its `dims` are {', '.join(map(str, dims))}: "
            "name every length there"
        )


def check_finite(values: object, number: int) -> dict[str, float]:
    """Return the metrics after round `number`; raise InputError for a name with 'epsilon' or a value not finite."""
    if not isinstance(values, Mapping):
        raise InputError(f"evaluate() returns a dictionary of names and numbers, not {type(values).__name__}")
    measured = {str(name): _as_number(name, value) for name, value in values.items()}
    for name, value in measured.items():
        if is_reserved_metric(name):
            reserved = "names with 'epsilon' are reserved for the ledger: choose another name"
            raise InputError(f"evaluate() returns a metric called '{name}', but {reserved}")
        if not math.isfinite(value):
            raise InputError(f"'{name}' is not finite after round {number}: training diverged, lower its learning rate")
    return measured


def _as_number(name: object, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise InputError(f"evaluate() returns a number for every name, and for '{name}' it is {kind}") from None

"""The coordinator: one round after the other, from the invitation of clients to the use of their sum.

It knows neither where the clients are nor how their messages travel: `Rounds` does.  Nothing that costs privacy is
asked for before the ledger has it.
"""

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dordis.errors import BudgetExceeded, BudgetUsedUp, ImpossibleSum, InputError, RoundFailed
from dordis.federation.allowance import Allowances
from dordis.federation.beacon import Beacon
from dordis.federation.charges import Charge
from dordis.federation.design import Design
from dordis.federation.evictions import Evictions
from dordis.federation.ledger import Ledger
from dordis.federation.metric_names import is_reserved
from dordis.federation.receipt import Receipt
from dordis.federation.records import Failed, Metrics, RoundRecord, timestamp
from dordis.federation.retry import TRIES, Failure, attempt, to_evict
from dordis.federation.selection import Selection
from dordis.pipeline.profile import AutoChunks
from dordis.privacy.clipping import Clipping
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.privacy.projection import Alignment
from dordis.protocol import ClientId
from dordis.protocols.costs import round_cost
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.gate import PrivacyGate
from dordis.rounds.invitation import Invitation, Invite
from dordis.rounds.model import ModelBytes
from dordis.rounds.server import AgreedRound, Gathered, InterruptedRound, RoundResult, Rounds, Watch, silent


@dataclass(frozen=True)
class Finished:
    """A round that is over, ready to be recorded."""

    record: RoundRecord
    metrics: Metrics
    receipt: Receipt
    result: RoundResult = field(repr=False)
    parameters: Parameters = field(repr=False)


@dataclass(frozen=True)
class _Summed:
    """A round up to its sum."""

    invited: int
    gathered: Gathered
    agreed: AgreedRound
    design: Design
    result: RoundResult


class Coordinator:
    """Run the rounds of one run; without a `ledger` nothing is proved and nothing counted.

    `counts_owners` is False for queries over a table, where no owner counts participations.  `on_failure` is called
    with each failed attempt before the next one begins.
    """

    def __init__(
        self,
        run: bytes,
        app: AppServer,
        design: Design,
        selection: Selection,
        rounds: Rounds,
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
        interrupted: InterruptedRound | None = None,
        evictions: Evictions | None = None,
        entropy: Entropy = secrets.token_bytes,
        counts_owners: bool = True,
        on_failure: Callable[[Failed], None] = lambda failed: None,
    ) -> None:
        self._counts_owners = counts_owners and ledger is not None
        self._run, self._app, self._design = run, app, design
        self._selection, self._rounds, self._ledger = selection, rounds, ledger
        self._registry, self._beacon, self._watch = registry, beacon, watch
        self._tries, self._chunks, self._protocol, self._entropy = tries, chunks, protocol, entropy
        self._clipping, self._alignment = clipping or Clipping(design.setting.clip), alignment
        self._evictions = Evictions() if evictions is None else evictions
        self._on_failure = on_failure
        self._count = 1
        self._interrupted = interrupted

    def rounds(self, count: int, done: int = 0, index: int = 0) -> Iterator[Finished]:
        """Run rounds until `count` are finished, of which `done` were before; `index` is the first that is free.

        `BudgetExceeded` ends them before the round that would pass the budget, or that too few clients can pay for.
        """
        self._count = count
        for number in range(done + 1, count + 1):
            finished = self.round(number, index)
            yield finished
            index = finished.record.index + 1

    def round(self, number: int, index: int) -> Finished:
        """Run one round under this index or, where it fails or too few can pay for it, under one of the next."""
        self._count = max(self._count, number)
        began, started = timestamp(), time.perf_counter()
        if self._interrupted is not None and self._interrupted.number == number:
            index = self._interrupted.parameters.index
        attempted = attempt(
            lambda i: self._sum(RoundInfo(number, i, self._run)),
            index,
            self._tries,
            lambda failure: self._on_failure(self._failed(failure)),
        )
        summed = attempted.output
        parameters, result = summed.agreed.parameters, summed.result
        if self._ledger is not None:
            self._ledger.complete(parameters.index, result.outputs)
        self._clipping = self._clipping.next(result.aggregate.below)
        observed = summed.design.alignment(result.outputs, result.aggregate)
        if observed is not None:
            self._alignment = observed if self._alignment is None else self._alignment.next(observed)
        used, noise = time.perf_counter(), summed.design.noise(result.outputs)
        self._watch("use output")
        deviation = 0.0 if noise is None else math.sqrt(noise.left) / summed.design.mechanism.grid.scale
        clip = parameters.encoding.clip or math.inf
        info = RoundInfo(number, parameters.index, self._run, clip, deviation)
        self._app.use_output(info, result.aggregate)
        values = check_finite(self._app.evaluate(), number) | summed.design.costs(result.outputs)
        stages = {**summed.gathered.stages, **result.stages, "use output": time.perf_counter() - used}
        spent, head = (None, "") if self._ledger is None else self._ledger.spent()
        record = RoundRecord(
            number=number,
            index=parameters.index,
            started=began,
            seconds=time.perf_counter() - started,
            stages=stages,
            invited=summed.invited,
            clients=tuple(int(u) for u in parameters.clients),
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
            failures=tuple(self._failed(failure) for failure in attempted.failures),
            evicted=self._evictions.after(parameters.index),
            dim=summed.design.setting.dim,
            buckets=summed.design.setting.buckets,
            alignment=self._alignment,
            clip=parameters.encoding.clip or None,
            below=result.aggregate.below,
            sum_check=result.sum_check,
        )
        receipt = Receipt.of(parameters, result.outputs, head)
        return Finished(record, Metrics(number, values), receipt, result, parameters)

    def _failed(self, failure: Failure) -> Failed:
        error = failure.error
        spoilt = tuple(map(int, error.survivors)) if isinstance(error, ImpossibleSum) else ()
        return Failed(failure.index, str(error), self._evictions.after(failure.index), spoilt)

    def _sum(self, info: RoundInfo) -> _Summed:
        """Gather the clients, agree on the parameters, make sure that the budget allows it, and sum."""
        before, self._interrupted = self._interrupted, None
        resumed = before is not None and (before.number, before.parameters.index) == (info.number, info.index)
        if before is not None and resumed:
            proofs: Mapping[ClientId, bytes] = before.proofs
            gathered, invited, parameters = Gathered({}), before.invited, before.parameters
            planned = self._next_design().within(before.allowed).clipped(self._clipping.bound)
            design = planned.sized(len(parameters.clients))
        else:
            model = ModelBytes.of(self._app.model(), self._app.dtype)
            invitation, planned = self._invitation(info, model)
            gathered, invited = self._rounds.gather(invitation, self._watch), len(invitation.clients)
            parameters, design, proofs = self._agree(info, model, gathered, planned)
        charge = None if self._ledger is None else design.charge(parameters)
        if self._ledger is not None and charge is not None and not resumed:
            self._keep_to_budget(self._ledger.check_budget, charge.best)

        def count(asked: Collection[ClientId]) -> None:
            """Write down what owners count before anything is uploaded."""
            if self._ledger is None or charge is None or not self._counts_owners:
                return
            if not (resumed and (self._run, info.index) in self._ledger.counted()):
                self._ledger.count(info.index, map(int, asked), round_cost(parameters, design.kind))

        def announce(dropped: Mapping[int, int]) -> None:
            """Write the cost down before anything is disclosed."""
            charged = self._ledger is not None and self._ledger.round(info.index) is not None
            if self._ledger is not None and charge is not None and not (resumed and charged):
                self._keep_to_budget(self._ledger.reserve, charge.closed(dropped))

        gate = PrivacyGate(count, announce)
        agreed = AgreedRound(parameters, design.mechanism, proofs, gate, info.number, invited, planned.allowed)
        result = self._run_round(agreed)
        if isinstance(self._chunks, AutoChunks) and result.timeline is not None:
            self._chunks = self._chunks.observe(design.mechanism.grid.padded, result.timeline)
        return _Summed(invited, gathered, agreed, design, result)

    def _keep_to_budget(self, check: Callable[[Charge], None], charge: Charge) -> None:
        """Check or reserve a round; if the budget refuses it, record the refusal in the ledger, which ends the run.

        Queries are refused without a record: later ones may fit the budget.
        """
        try:
            check(charge)
        except BudgetExceeded:
            if self._ledger is not None and self._counts_owners:
                self._ledger.refuse(charge)
            raise

    def _run_round(self, agreed: AgreedRound) -> RoundResult:
        """Sum, and evict whoever lied: whether the round survived that or not, they are in none of the next."""
        parameters = agreed.parameters
        try:
            result = self._rounds.sum(agreed, self._watch)
        except RoundFailed as failure:
            going = to_evict(failure, parameters.colluders, parameters.colluders_around)
            self._evictions.add(parameters.index, going, str(failure))
            raise
        named = frozenset(u for output in result.outputs for u in output.named)
        self._evictions.add(parameters.index, named, "it lied, and the round survived that")
        return result

    def _invitation(self, info: RoundInfo, model: ModelBytes) -> tuple[Invitation, Design]:
        """Invite those who are due, and promise what any cohort of them will keep, at a cost that each can pay."""
        least = self._design.least
        able = self._able(frozenset(self._rounds.available(info.index)) - self._evictions.clients, info)
        candidates = self._selection.candidates(info.index, able)
        design = self._next_design()
        if self._ledger is not None and design.counts:
            design = design.within(min((able[u] for u in candidates), default=design.allowed))
        design = design.clipped(self._clipping.bound)
        invite = Invite(
            round=self._run + info.index.to_bytes(INDEX_BYTES, "big"),
            number=info.number,
            protocol=self._protocol,
            registry=self._registry,
            dim=design.setting.dim,
            terms=design.promise(least),
            model=model.digest,
            model_bytes=len(model.data),
            dtype=model.dtype,
        )
        return Invitation(invite, model, candidates), design

    def _next_design(self) -> Design:
        """Return the design for updates as long as those of the next round are."""
        check_planned(self._app.dim, self._app.dims)
        return self._design.of_dim(self._app.dim).adapted(self._alignment)

    def _agree(
        self, info: RoundInfo, model: ModelBytes, gathered: Gathered, planned: Design
    ) -> tuple[Parameters, Design, Mapping[ClientId, bytes]]:
        """Fix U among those who are ready, and the parameters of the round."""
        selected = self._selection.select(info.index, gathered.ready.keys(), gathered.ready)
        design = planned.sized(len(selected.clients))
        parameters = design.agree_on(
            run=self._run,
            index=info.index,
            clients=selected.clients,
            rotation=self._entropy(SEED_BYTES),
            model=model.digest,
            beacon=b"" if self._beacon is None else self._beacon.value(info.index),
            chunks=self._next_chunks(design),
        )
        return parameters, design, selected.proofs

    def _next_chunks(self, design: Design) -> int:
        """Return the number of chunks for a round: as given, or what the rounds so far make best."""
        grid = design.mechanism.grid
        if isinstance(self._chunks, AutoChunks):
            return self._chunks.next(grid.padded, grid.blocks)
        return min(self._chunks, grid.blocks)

    def _able(self, clients: Collection[ClientId], info: RoundInfo) -> dict[ClientId, float]:
        """Return what clients can pay for a round, of those who can; the others would refuse."""
        if self._ledger is None or not self._counts_owners:
            return dict.fromkeys(clients, self._design.allowed)
        allowances = Allowances.of(self._design, self._ledger.counted())
        left = self._count - info.number + 1
        able = {u: paid for u, paid in allowances.each(clients, self._selection, info.index, left).items() if paid}
        check_able(len(clients), len(able), self._design.least)
        return able


def check_planned(dim: int, dims: Collection[int]) -> None:
    """Refuse an update of a length that the application did not name before the run was planned."""
    if dim not in dims:
        raise InputError(
            f"the application's next update has {dim} coordinates, and its `dims` are {', '.join(map(str, dims))}: "
            "name every length there"
        )


def check_able(available: int, able: int, least: int) -> None:
    """End the run if clients are there, and too few of them can pay for a round."""
    if able < least <= available:
        raise BudgetUsedUp(able, least)


def check_finite(values: object, number: int) -> dict[str, float]:
    """Refuse metrics of an application that are no numbers, or went astray; no number stands for them."""
    if not isinstance(values, Mapping):
        raise InputError(f"evaluate() returns a dictionary of names and numbers, not {type(values).__name__}")
    measured = {str(name): _as_number(name, value) for name, value in values.items()}
    for name, value in measured.items():
        if is_reserved(name):
            raise InputError(
                f"evaluate() returns a metric called '{name}', but names with 'epsilon' are reserved for the ledger: "
                "choose another name"
            )
        if not math.isfinite(value):
            raise InputError(f"'{name}' is not finite after round {number}: training diverged, lower its learning rate")
    return measured


def _as_number(name: object, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"evaluate() returns a number for every name, and for '{name}' it is {type(value).__name__}"
        ) from None


def next_index(ledger: Ledger | None, last: RoundRecord | None) -> int:
    """Return the first index that no round of a run has used, as far as anyone knows."""
    used = [-1 if last is None else last.index]
    if ledger is not None:
        used.append(ledger.last_index())
    return max(used) + 1


def _added(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second

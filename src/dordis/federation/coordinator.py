"""The coordinator: one round after the other, from the invitation of clients to the use of their sum.

It knows neither where the clients are nor how their messages travel: `Rounds` does.  Nothing that costs privacy is
asked for before the ledger has it.
"""

import math
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from dordis.errors import InputError, RoundFailed
from dordis.federation.beacon import Beacon
from dordis.federation.design import Design
from dordis.federation.evictions import Evictions
from dordis.federation.ledger import Ledger
from dordis.federation.receipt import Receipt
from dordis.federation.records import Failed, Metrics, RoundRecord, timestamp
from dordis.federation.retry import TRIES, Failure, attempt, to_evict
from dordis.federation.selection import Selection
from dordis.pipeline.profile import AutoChunks
from dordis.privacy.clipping import Clipping
from dordis.privacy.encoding import SEED_BYTES, Entropy
from dordis.protocol import ClientId
from dordis.protocols.parameters import INDEX_BYTES, Parameters
from dordis.rounds.app import AppServer, RoundInfo
from dordis.rounds.invitation import Invitation, Invite
from dordis.rounds.model import ModelBytes
from dordis.rounds.server import AgreedRound, Gathered, RoundResult, Rounds, Watch, silent
from dordis.rounds.terms import Terms


@dataclass(frozen=True)
class Finished:
    """A round that is over, ready to be recorded."""

    record: RoundRecord
    metrics: Metrics
    receipt: Receipt
    result: RoundResult = field(repr=False)


@dataclass(frozen=True)
class _Summed:
    """A round up to its sum."""

    invited: int
    gathered: Gathered
    agreed: AgreedRound
    design: Design
    result: RoundResult


class Coordinator:
    """Run the rounds of one run; without a `ledger` nothing is proved and nothing counted."""

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
        evictions: Evictions | None = None,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        self._run, self._app, self._design = run, app, design
        self._selection, self._rounds, self._ledger = selection, rounds, ledger
        self._registry, self._beacon, self._watch = registry, beacon, watch
        self._tries, self._chunks, self._protocol, self._entropy = tries, chunks, protocol, entropy
        self._clipping = clipping or Clipping(design.setting.clip)
        self._evictions = Evictions() if evictions is None else evictions

    def rounds(self, count: int, done: int = 0, index: int = 0) -> Iterator[Finished]:
        """Run rounds until `count` are finished, of which `done` were before; `index` is the first that is free.

        `BudgetExceeded` ends them before the round that would pass the budget.
        """
        for number in range(done + 1, count + 1):
            finished = self.round(number, index)
            yield finished
            index = finished.record.index + 1

    def round(self, number: int, index: int) -> Finished:
        """Run one round under this index or, where it fails, under one of the next."""
        began, started = timestamp(), time.perf_counter()
        attempted = attempt(lambda i: self._sum(RoundInfo(number, i, self._run)), index, self._tries)
        summed = attempted.output
        parameters, result = summed.agreed.parameters, summed.result
        if self._ledger is not None:
            self._ledger.complete(parameters.index, result.outputs)
        self._clipping = self._clipping.next(result.aggregate.below)
        used = time.perf_counter()
        self._watch("use output")
        self._app.use_output(RoundInfo(number, parameters.index, self._run), result.aggregate)
        values = check_finite(self._app.evaluate(), number) | summed.design.costs(result.outputs)
        stages = {**summed.gathered.stages, **result.stages, "use output": time.perf_counter() - used}
        spent, head = (None, "") if self._ledger is None else self._ledger.spent()
        noise = summed.design.noise(result.outputs)
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
            wanted=None if noise is None else noise.wanted,
            left=None if noise is None else noise.left,
            charged=None if noise is None else noise.charged,
            epsilon=spent,
            failures=tuple(self._failed(failure) for failure in attempted.failures),
            evicted=self._evicted(parameters.index),
            clip=parameters.encoding.clip or None,
            below=result.aggregate.below,
        )
        receipt = Receipt.of(parameters, result.outputs, head)
        return Finished(record, Metrics(number, values), receipt, result)

    def _failed(self, failure: Failure) -> Failed:
        return Failed(failure.index, str(failure.error), self._evicted(failure.index))

    def _evicted(self, index: int) -> tuple[int, ...]:
        """Return who had to go after the round with an index."""
        return tuple(u for line in self._evictions.lines if line.index == index for u in line.clients)

    def _sum(self, info: RoundInfo) -> _Summed:
        """Gather the clients, agree on the parameters, make sure that the budget allows it, and sum."""
        model = ModelBytes.of(self._app.model(), self._app.dtype)
        invitation = self._invitation(info, model)
        gathered = self._rounds.gather(invitation, self._watch)
        parameters, design, proofs = self._agree(info, model, gathered)
        charge = None if self._ledger is None else design.charge(parameters)
        if self._ledger is not None and charge is not None:
            self._ledger.check_budget(charge)

        def announce() -> None:
            """Write the cost down before anything is disclosed."""
            if self._ledger is not None and charge is not None:
                self._ledger.reserve(charge)

        agreed = AgreedRound(parameters, design.mechanism, proofs, announce)
        result = self._run_round(agreed)
        if isinstance(self._chunks, AutoChunks) and result.timeline is not None:
            self._chunks = self._chunks.observe(design.mechanism.grid.padded, result.timeline)
        return _Summed(len(invitation.clients), gathered, agreed, design, result)

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

    def _invitation(self, info: RoundInfo, model: ModelBytes) -> Invitation:
        """Invite those who are due, and promise what any cohort of them will keep."""
        least = self._design.least
        willing = frozenset(self._with_budget(self._rounds.available(info.index))) - self._evictions.clients
        invite = Invite(
            round=self._run + info.index.to_bytes(INDEX_BYTES, "big"),
            number=info.number,
            protocol=self._protocol,
            registry=self._registry,
            dim=self._app.dim,
            terms=Terms.of(self._design.clipped(self._clipping.bound).example()).promised(least),
            model=model.digest,
            model_bytes=len(model.data),
            dtype=model.dtype,
        )
        return Invitation(invite, model, self._selection.candidates(info.index, willing))

    def _agree(
        self, info: RoundInfo, model: ModelBytes, gathered: Gathered
    ) -> tuple[Parameters, Design, Mapping[ClientId, bytes]]:
        """Fix U among those who are ready, and the parameters of the round."""
        selected = self._selection.select(info.index, gathered.ready.keys(), gathered.ready)
        design = self._design.sized(len(selected.clients)).clipped(self._clipping.bound)
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
        return self._chunks.next(grid.padded, grid.blocks) if isinstance(self._chunks, AutoChunks) else self._chunks

    def _with_budget(self, clients: Collection[ClientId]) -> Collection[ClientId]:
        """Leave out those who have taken part as often as the plan covers, in runs before too: they would refuse.

        What runs before cost may differ from the plan: whoever could not pay for a round of this one is left out, too.
        """
        if self._ledger is None:
            return clients
        carried = self._ledger.carried()
        rounds = (*self._ledger.attended().values(), *carried.values())
        cap, times = self._design.cap, Counter(u for present in rounds for u in present)
        willing = [u for u in clients if times[u] < cap]
        charge = self._design.charge(self._design.example()) if carried else None
        return willing if charge is None else self._ledger.with_budget(willing, charge)


def check_finite(values: Mapping[str, float], number: int) -> dict[str, float]:
    """Refuse metrics of an application that went astray; no number stands for them."""
    for name, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"'{name}' is not finite after round {number}: training diverged, lower its learning rate")
    return dict(values)


def next_index(ledger: Ledger | None, last: RoundRecord | None) -> int:
    """Return the first index that no round of a run has used, as far as anyone knows."""
    used = [-1 if last is None else last.index]
    if ledger is not None:
        used.append(ledger.last_index())
    return max(used) + 1


def _added(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second

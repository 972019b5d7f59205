"""Audit the privacy of simulated rounds: attack them with canaries and colluders, and test their noise."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.options import Json
from dordis.cli.output import FOUND, facts_table, print_result, show_progress
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.apps.audit import Audit

FEWEST, MOST = 10, 2_000
MOST_ROUNDS = 1000
MOST_RECORDS = 10_000


def audit(
    rounds: Annotated[int, typer.Option(help="How many rounds the run has.")] = 1,
    clients: Annotated[
        int | None, typer.Option(help="How many clients take part in every round; 100, or 10 with --unit record.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run is planned for, and claims.")] = 1.0,
    colluders: Annotated[
        int | None,
        typer.Option(
            help="Clients that tell the server their noise; if not given one in twenty, for records at least one."
        ),
    ] = None,
    dropped: Annotated[
        int | None,
        typer.Option(help="Clients that drop out before their upload; half of the tolerated number if not given."),
    ] = None,
    late: Annotated[
        int | None,
        typer.Option(help="Clients that drop out after their upload; if not given, half of what --dropped leaves."),
    ] = None,
    scheme: Annotated[str, typer.Option(help="How noise is divided: single, or exact as in the paper.")] = "single",
    protocol: Annotated[str, typer.Option(help="The summing protocol: secagg, secagg+ or plaintext.")] = "secagg",
    unit: Annotated[str, typer.Option(help="The unit of privacy that is attacked: client or record.")] = "client",
    records: Annotated[int, typer.Option(help="With --unit record: the records of each client.")] = 100,
    sampling: Annotated[float, typer.Option(help="With --unit record: probability of sampling a record.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Attack whole rounds with canaries, and test their noise.

    The exit code is 1 if the attack shows a larger epsilon than claimed, or if the noise is not as stated.
    """
    from dordis.apps import audit as auditing
    from dordis.privacy.noise_strategies import XNoise
    from dordis.protocols import summing_protocol

    if unit not in ("client", "record"):
        raise InputError(f"--unit is 'client' or 'record', not '{unit}'")
    by_record = unit == "record"
    clients = (10 if by_record else 100) if clients is None else clients
    if not FEWEST <= clients <= MOST:
        raise InputError(f"an audit takes {FEWEST} to {MOST} clients, not {clients}")
    if by_record and not 1 <= clients * records <= MOST_RECORDS:
        raise InputError(f"an audit takes 1 to {MOST_RECORDS} records of all clients, not {clients} times {records}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"an audit takes 1 to {MOST_ROUNDS} rounds, not {rounds}")
    if scheme not in ("single", "exact"):
        raise InputError(f"noise is divided by the scheme 'single' or 'exact', not '{scheme}'")
    usual = max(1, clients // 20) if by_record else clients // 20
    summing, colluding = summing_protocol(protocol), usual if colluders is None else colluders
    strategy = XNoise("exact" if scheme == "exact" else "single")
    if by_record:
        design = auditing.toy_record_design(
            clients, records, rounds, sampling, epsilon, colluders=colluding, strategy=strategy, protocol=summing
        )
    else:
        design = auditing.toy_design(clients, rounds, epsilon, colluders=colluding, strategy=strategy, protocol=summing)
    tolerated = design.setting.T
    gone = tolerated // 2 if dropped is None else dropped
    later = max(0, tolerated - gone) // 2 if late is None else late
    with show_progress(f"{rounds} rounds of {clients} clients, and the attack on them"):
        result = (auditing.audit_records if by_record else auditing.audit)(design, gone, later, summing)
    setup = {"protocol": protocol, "scheme": scheme, "rounds": rounds, "clients": clients}
    setup |= {"unit": unit, "records": records, "sampling": sampling} if by_record else {}
    setup |= {"dropped": gone, "late": later, "colluders": colluding}
    counted = f"{rounds} rounds" if rounds > 1 else "One round"
    title = f"{counted} of {protocol}, noise '{scheme}', mode '{design.agreement.mode}'"
    held = f", each with {records} records, sampled with probability {sampling:g}" if by_record else ""
    rows = {
        "clients": f"{clients}{held}: {gone} drop out before the upload, {later} after it, {colluding} collude",
        **_describe_audit(result),
    }
    print_result(as_json, setup | {"found": bool(result.findings)} | asdict(result), facts_table(rows, title))
    if result.findings:
        raise typer.Exit(FOUND)


def _describe_audit(result: "Audit") -> dict[str, str]:
    """Return the rows of the printed table by name: noise measured, epsilon claimed, epsilon shown, findings."""
    guessed, noise, hidden = result.canaries, result.noise, result.hidden
    return {
        "noise in the sum": f"{noise.ratio:.3f} of the variance that the rounds state ({noise.samples} samples; "
        f"chance of such a deviation: {min(1.0, 2 * min(noise.too_small, noise.too_large)):.2g} at most)",
        "noise hidden from colluders": f"{hidden.ratio:.3f} of the variance that epsilon is based on (chance of a "
        f"ratio this small: {hidden.too_small:.2g} at most)",
        "variance that epsilon is based on": f"{result.counted:.4f} of the target, in the worst round",
        "epsilon, delta claimed": f"{guessed.claimed:.4g}, {guessed.delta:.4g}",
        "epsilon shown, at least": f"{guessed.shown:.4g}, with {guessed.confidence:.1%} confidence: of "
        f"{guessed.canaries} canaries {guessed.guesses} are guessed, {guessed.correct} rightly",
        "epsilon shown, at best": f"{guessed.most:.4g}, had every guess been right",
        "FOUND" if result.findings else "found": "; ".join(result.findings) or "nothing",
    }

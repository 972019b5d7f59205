"""An audit: whole rounds with dropout and colluders, canaries among the clients, and a test of the noise."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dordis.cli.exits import FOUND
from dordis.cli.options import Json
from dordis.cli.tables import facts, show, working
from dordis.errors import InputError

if TYPE_CHECKING:
    from dordis.apps.audit import Audit

FEWEST, MOST = 10, 2_000
MOST_ROUNDS = 1000


def audit(
    rounds: Annotated[int, typer.Option(help="How many rounds the run has.")] = 1,
    clients: Annotated[int, typer.Option(help="How many clients take part in every round.")] = 100,
    epsilon: Annotated[float, typer.Option(help="The epsilon that the run is planned for, and claims.")] = 1.0,
    colluders: Annotated[
        int | None, typer.Option(help="How many tell the server their noise: one in twenty by default.")
    ] = None,
    dropped: Annotated[
        int | None, typer.Option(help="How many drop out before they upload: half of those tolerated by default.")
    ] = None,
    late: Annotated[
        int | None, typer.Option(help="How many more drop out after it: a quarter of those tolerated by default.")
    ] = None,
    scheme: Annotated[str, typer.Option(help="How noise is divided: 'single' or the paper's 'exact'.")] = "single",
    protocol: Annotated[str, typer.Option(help="The protocol that sums: 'secagg', 'secagg+', 'plaintext'.")] = "secagg",
    as_json: Json = False,
) -> None:
    """Run whole rounds, attack them with canaries and test their noise.

    The exit code is 1 if something was found: more is given away than is claimed, or the noise is not what is stated.
    """
    from dordis.apps import audit as auditing
    from dordis.federation.strategies.xnoise import XNoise
    from dordis.protocols.table import summing_protocol

    if not FEWEST <= clients <= MOST:
        raise InputError(f"an audit takes {FEWEST} to {MOST} clients, not {clients}")
    if not 1 <= rounds <= MOST_ROUNDS:
        raise InputError(f"an audit takes 1 to {MOST_ROUNDS} rounds, not {rounds}")
    if scheme not in ("single", "exact"):
        raise InputError(f"noise is divided by the scheme 'single' or 'exact', not '{scheme}'")
    summing, colluding = summing_protocol(protocol), clients // 20 if colluders is None else colluders
    strategy = XNoise("exact" if scheme == "exact" else "single")
    design = auditing.toy_design(clients, rounds, epsilon, colluders=colluding, strategy=strategy, protocol=summing)
    tolerated = design.setting.T
    gone = tolerated // 2 if dropped is None else dropped
    later = max(0, tolerated - gone) // 2 if late is None else late
    with working(f"{rounds} rounds of {clients} clients, and the attack on them"):
        result = auditing.audit(design, gone, later, summing)
    setup = {"protocol": protocol, "scheme": scheme, "rounds": rounds, "clients": clients}
    setup |= {"dropped": gone, "late": later, "colluders": colluding}
    counted = f"{rounds} rounds" if rounds > 1 else "One round"
    title = f"{counted} of {protocol}, noise '{scheme}', mode '{design.agreement.mode}'"
    told = {
        "clients": f"{clients}: {gone} drop out before the upload, {later} after it, {colluding} collude",
        **_words(result),
    }
    show(as_json, setup | {"found": bool(result.findings)} | asdict(result), facts(told, title))
    if result.findings:
        raise typer.Exit(FOUND)


def _words(result: "Audit") -> dict[str, str]:
    """Say what was measured and what was found."""
    guessed, noise, hidden = result.canaries, result.noise, result.hidden
    return {
        "noise in the sum": f"{noise.ratio:.3f} of the variance that the rounds state ({noise.samples} samples; "
        f"chance of such a deviation: {min(1.0, 2 * min(noise.too_small, noise.too_large)):.2g} at most)",
        "noise hidden from colluders": f"{hidden.ratio:.3f} of the variance that privacy counts on (chance of so "
        f"little: {hidden.too_small:.2g} at most)",
        "variance counted on": f"{result.counted:.4f} of the target, in the worst round",
        "epsilon, delta claimed": f"{guessed.claimed:.4g}, {guessed.delta:.4g}",
        "epsilon shown, at least": f"{guessed.shown:.4g}, with {guessed.confidence:.1%} confidence: of "
        f"{guessed.canaries} canaries {guessed.guesses} are guessed, {guessed.correct} rightly",
        "epsilon shown, at best": f"{guessed.most:.4g}, had every guess been right",
        "FOUND" if result.findings else "found": "; ".join(result.findings) or "nothing",
    }

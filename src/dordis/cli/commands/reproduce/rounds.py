"""The paper's round times beside ours."""

from dordis.cli.options import Charts, Costs, Json, PaperOnly


def rounds(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how long rounds take, plain and in a pipeline.

    The paper's claims are beside ours.
    """
    from dordis.cli.reproduce import show
    from dordis.cli.tables import working
    from dordis.reproduce import rounds

    with working("rounds in virtual time, and their costs"):
        experiment = rounds.rounds(rounds.cost_mixes(costs, paper))
    show(experiment, as_json, charts)

"""The share of aggregation in a round."""

from dordis.cli.options import Charts, Costs, Json, PaperOnly


def overhead(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how much of a round is aggregation.

    The number of clients grows, with and without noise.
    """
    from dordis.cli.reproduce import show
    from dordis.cli.tables import working
    from dordis.reproduce import rounds

    with working("rounds in virtual time, and their costs"):
        experiment = rounds.overhead(rounds.cost_mixes(costs, paper))
    show(experiment, as_json, charts)

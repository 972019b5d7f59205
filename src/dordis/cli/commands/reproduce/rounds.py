"""The paper's round times beside ours."""

from dordis.cli.options import Charts, Costs, Json, PaperOnly


def rounds(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how long rounds take, plain and in a pipeline.

    The paper's claims are beside ours.
    """
    from dordis.cli.reproduce import show
    from dordis.reproduce import rounds

    show(rounds.rounds(rounds.cost_mixes(costs, paper)), as_json, charts)

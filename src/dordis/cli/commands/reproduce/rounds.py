"""The paper's round times beside ours."""

from dordis.cli.options import Charts, Costs, Json, PaperOnly


def rounds(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how long rounds take, plain and in a pipeline.

    The paper's claims are beside ours.
    """
    from dordis.cli import reproduce_rounds

    reproduce_rounds.rounds(costs, paper, charts, as_json)

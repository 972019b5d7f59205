"""The paper's share of aggregation in a round beside ours."""

from dordis.cli.options import Charts, Costs, Json, PaperOnly


def overhead(costs: Costs = None, paper: PaperOnly = False, charts: Charts = None, as_json: Json = False) -> None:
    """Show how much of a round is aggregation.

    The number of clients grows, with and without noise.
    """
    from dordis.cli import reproduce_overhead

    reproduce_overhead.overhead(costs, paper, charts, as_json)

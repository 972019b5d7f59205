"""Secure aggregation with an escrow of clients' secrets, on the complete graph (SecAgg) or a sparse one (SecAgg+)."""

from dataclasses import replace

from dordis.protocol import requests_in
from dordis.protocols.cohort import CohortParameters, agree_with_cohort
from dordis.protocols.secagg import client_checks, messages
from dordis.protocols.secagg.client import SecAggClient
from dordis.protocols.secagg.server import SecAggPrediction, SecAggServer
from dordis.protocols.summing import SummingProtocol

__all__ = ["SECAGG", "SECAGG_PLUS", "SecAggClient", "SecAggServer"]

SECAGG = SummingProtocol(
    "secagg",
    SecAggServer,
    SecAggClient,
    requests_in(vars(messages)),
    SecAggPrediction,
    CohortParameters,
    agree_with_cohort,
    check_signed=client_checks.verify_survivors,
)
SECAGG_PLUS = replace(SECAGG, name="secagg+", sparse=True)

"""The protocols that sum, by their short names; third parties name theirs as `package.module:NAME`."""

from dordis.names import named
from dordis.protocols.summing import SummingProtocol

SUMMING = {
    "secagg": "dordis.protocols.secagg:SECAGG",
    "secagg+": "dordis.protocols.secagg:SECAGG_PLUS",
    "plaintext": "dordis.protocols.plaintext:PLAINTEXT",
}


def summing_protocol(name: str) -> SummingProtocol:
    """Return the protocol that a configuration names.

    >>> summing_protocol("secagg+").sparse
    True
    """
    return named(SUMMING.get(name, name), "protocol.use", SummingProtocol)

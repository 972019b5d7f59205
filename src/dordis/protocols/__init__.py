"""Protocols that sum the clients' vectors: SecAgg, SecAgg+, assisted and plaintext; and the code that they share.

`SUMMING` has the names that a configuration uses for these protocols.  A configuration names a protocol of a third
party as `package.module:NAME`.
"""

from dordis.errors import InputError
from dordis.loading import load_object
from dordis.protocols.summing import SummingProtocol

SUMMING = {
    "secagg": "dordis.protocols.secagg:SECAGG",
    "secagg+": "dordis.protocols.secagg:SECAGG_PLUS",
    "assisted": "dordis.protocols.assisted:ASSISTED",
    "plaintext": "dordis.protocols.plaintext:PLAINTEXT",
}


def summing_protocol(name: str) -> SummingProtocol:
    """Return the protocol with this name: a name in `SUMMING`, or `package.module:NAME` for that of a third party.

    >>> summing_protocol("secagg+").sparse
    True
    """
    if name not in SUMMING and ":" not in name:
        raise InputError(
            f"protocol.use: there is no protocol '{name}', pass one of {', '.join(SUMMING)}, or package.module:NAME"
        )
    return load_object(SUMMING.get(name, name), "protocol.use", SummingProtocol)

"""Summing protocols: parameters of a round, SecAgg, assisted and plaintext sums, distributed noise, delivery.

The table `SUMMING` has the short names of the protocols of this package; a configuration names a third party's protocol
as `package.module:NAME`.
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
    """Return the summing protocol that `protocol.use` of a configuration names.

    >>> summing_protocol("secagg+").sparse
    True
    """
    if name not in SUMMING and ":" not in name:
        raise InputError(
            f"protocol.use: there is no protocol '{name}', pass one of {', '.join(SUMMING)}, or package.module:NAME"
        )
    return load_object(SUMMING.get(name, name), "protocol.use", SummingProtocol)

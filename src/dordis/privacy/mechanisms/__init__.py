"""The mechanisms of differential privacy by name.  A new one is a file of this package and a line of this table."""

from dordis.errors import ParametersRefused
from dordis.names import named_class
from dordis.privacy.mechanisms.mechanism import Mechanism

TABLE = {
    "skellam": "dordis.privacy.mechanisms.skellam:DSkellam",
    "ddgauss": "dordis.privacy.mechanisms.ddgauss:DDGauss",
    "central-gaussian": "dordis.privacy.mechanisms.central_gaussian:CentralGaussian",
    "local-gaussian": "dordis.privacy.mechanisms.local_gaussian:LocalGaussian",
    "none": "dordis.privacy.mechanisms.none:NoMechanism",
}


def kind_of(name: str) -> type[Mechanism]:
    """Return a mechanism that a configuration names, one of this package or `package.module:Class`.

    >>> kind_of("skellam").words
    'distributed Skellam noise, drawn in integers'
    """
    return named_class(TABLE.get(name, name), Mechanism, "privacy.mechanism")


def known(name: str) -> type[Mechanism]:
    """Return a mechanism of this package, and import no other: the name may come from a peer."""
    if name not in TABLE:
        raise ParametersRefused(f"'{name}' is not a mechanism of dordis: pass the mechanism too")
    return kind_of(name)

"""The mechanisms of differential privacy by name.  A new one is a file of this package and a line of this table."""

from dordis.errors import ParametersRefused
from dordis.loading import load_class
from dordis.privacy.mechanisms.mechanism import Mechanism

TABLE = {
    "skellam": "dordis.privacy.mechanisms.distributed_skellam:DSkellam",
    "ddgauss": "dordis.privacy.mechanisms.distributed_discrete_gaussian:DDGauss",
    "central-gaussian": "dordis.privacy.mechanisms.baselines:CentralGaussian",
    "local-gaussian": "dordis.privacy.mechanisms.baselines:LocalGaussian",
    "none": "dordis.privacy.mechanisms.baselines:NoMechanism",
}


def load_mechanism(name: str) -> type[Mechanism]:
    """Return the mechanism of a configured name: one of this package, or `package.module:Class`.

    >>> load_mechanism("skellam").description
    'distributed Skellam noise, drawn in integers'
    """
    return load_class(TABLE.get(name, name), Mechanism, "privacy.mechanism")


def find_builtin_mechanism(name: str) -> type[Mechanism]:
    """Return a mechanism of this package by name, or raise ParametersRefused.

    Names that peers send are looked up here and not in `load_mechanism`, which would import any module they name.
    """
    if name not in TABLE:
        raise ParametersRefused(f"'{name}' is not a mechanism of dordis: pass the mechanism too")
    return load_mechanism(name)

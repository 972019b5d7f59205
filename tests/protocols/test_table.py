"""The table of summing protocols: short names, names of third parties, and refused names."""

import pytest

from dordis.errors import InputError
from dordis.protocols.table import SUMMING, summing_protocol


@pytest.mark.parametrize("name", SUMMING)
def test_every_short_name_is_the_protocols_own(name):
    assert summing_protocol(name).name == name


def test_a_third_party_names_its_protocol_by_module():
    assert summing_protocol("dordis.protocols.secagg:SECAGG") is summing_protocol("secagg")


@pytest.mark.parametrize("name", ["secag", "dordis.protocols.secagg:NOTHING", "dordis.errors:InputError"])
def test_any_other_name_is_refused(name):
    with pytest.raises(InputError, match=r"protocol\.use"):
        summing_protocol(name)

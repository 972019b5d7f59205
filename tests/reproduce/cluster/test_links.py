"""The link plan: Zipf's law in three independent orders, an address for each client, bounds that are kept."""

import pytest

from dordis.errors import InputError
from reproduce.cluster.links import plan_links, slowest_mbps


def test_bandwidths_and_latencies_follow_zipfs_law_with_the_papers_exponent():
    links = plan_links(100, latency=0.2)
    assert sorted(link.mbps for link in links)[:4] == pytest.approx([21 * i**1.2 for i in (1, 2, 3, 4)])
    assert max(link.mbps for link in links) == 210
    latencies = sorted((link.latency for link in links), reverse=True)
    assert latencies == pytest.approx([0.2 * i**-1.2 for i in range(1, 101)])


def test_the_order_of_latencies_is_not_that_of_bandwidths():
    links = plan_links(50)
    by_bandwidth = sorted(links, key=lambda link: link.mbps)
    assert by_bandwidth != sorted(links, key=lambda link: -link.latency)
    assert plan_links(50) == links  # the same in every run


def test_every_client_has_an_address_and_a_port_of_its_own():
    links = plan_links(600)
    assert len({link.address for link in links}) == len({link.port for link in links}) == 600
    assert all(0 < int(part) < 255 for link in links for part in link.address.split(".")[2:])


def test_slower_links_and_devices():
    links = plan_links(10, slower=10, slowness=5)
    assert slowest_mbps(links) == pytest.approx(2.1)
    assert max(link.slowness for link in links) == 5
    assert min(link.slowness for link in links) == 1  # no device is faster than this machine
    device = links[0].device(3.0)
    assert (device.bandwidth, device.slowness) == (links[0].mbps * 1e6, 3 + links[0].slowness - 1)


@pytest.mark.parametrize(
    "wrong", [{"clients": 0}, {"clients": 2001}, {"slower": 0}, {"latency": -1}, {"slowness": 0.5}]
)
def test_plans_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        plan_links(**{"clients": 5, **wrong})

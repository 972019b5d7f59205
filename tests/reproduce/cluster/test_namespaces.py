"""Namespaces: the lines for `ip` and `tc`, and, as root, that they work and leave nothing behind."""

import json
import subprocess

import pytest

from dordis.errors import InputError
from reproduce.cluster import namespaces
from reproduce.cluster.links import plan_links
from reproduce.cluster.namespaces import Namespaces, address_lines, find_obstacle, open_namespaces, shaping_lines

TAG = "test"
obstacle = find_obstacle()
as_root = pytest.mark.skipif(obstacle is not None, reason=f"namespaces cannot be made here: {obstacle}")


def test_each_client_has_an_address_and_a_class_at_both_ends():
    links = plan_links(3)
    _, clients = address_lines(links)
    assert [line for line in clients if line.startswith("addr")] == [
        f"addr add 10.77.1.{u}/16 dev to-server" for u in (1, 2, 3)
    ]
    lines = shaping_lines(links, "to-server", "src")
    rates = [line.split("ceil ")[1].split()[0] for line in lines if line.startswith("class")]
    assert rates == [f"{link.mbps * 1000:.0f}kbit" for link in links for _ in range(3)]
    for link in links:
        short, long = (line for line in lines if line.startswith("filter") and f" src {link.address}/32 " in line)
        assert "match u16" in short
        assert short.rpartition(" ")[2] != long.rpartition(" ")[2]
        assert all(
            sum(f"classid {line.rpartition(' ')[2]} htb" in each for each in lines) == 1 for line in (short, long)
        )


def test_without_root_the_obstacle_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    assert find_obstacle() == "network namespaces need root"
    with pytest.raises(InputError, match="cannot run here: network namespaces need root"), open_namespaces((), TAG):
        pass


def list_namespaces():
    command = ["ip", "netns", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def check_links(links, made):
    """Check that both namespaces exist, and that the clients reach the server by a link with their classes."""
    assert {made.server, made.clients} <= list_namespaces()
    show = ["tc", "-n", made.clients, "class", "show", "dev", "to-server"]
    shown = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert (shown.count("class htb"), shown.count("ceil 21Mbit")) == (9, 3)
    route = ["ip", "-n", made.clients, "-j", "route", "get", "10.77.0.1", "from", links[1].address]
    reached = subprocess.run(route, capture_output=True, check=True)
    assert json.loads(reached.stdout)[0]["dev"] == "to-server"


def interrupt_within(links):
    with open_namespaces(links, TAG) as made:
        check_links(links, made)
        raise KeyboardInterrupt


@as_root
def test_links_have_their_rates_and_everything_is_removed_also_on_an_interrupt():
    names = Namespaces.with_tag(TAG)
    with pytest.raises(KeyboardInterrupt):
        interrupt_within(plan_links(3))
    assert not {names.server, names.clients} & list_namespaces()


@as_root
def test_namespaces_that_exist_are_refused_with_the_message_of_ip():
    links = plan_links(1)
    with open_namespaces(links, TAG), pytest.raises(InputError, match="File exists"), open_namespaces(links, TAG):
        pass

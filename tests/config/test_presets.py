"""The presets that come with the package; those of the paper record the paper's epsilon, whatever the model's size."""

import tomllib

import pytest

import dordis
from dordis.config import preset_text, read_presets
from dordis.errors import InputError

PAPER = {"paper-femnist": 8.33, "paper-cifar10": 8.18, "paper-reddit": 8.70}
"""Epsilon of Orig at a budget of 6 if 40 % of the clients drop out before they upload; the paper prints one digit."""
TOY = {"server": "tests.simulation.toys:Server", "client": "tests.simulation.toys:Client"}

hopeless = pytest.mark.filterwarnings("ignore:delta")


def spend(preset, noise, rate):
    """Run the toy application with a preset's privacy; its updates are short, and 16 bits make tables small."""
    config = tomllib.loads(preset_text(preset))
    config["app"] = TOY
    config["privacy"] |= {"noise": noise, "bits": 16}
    config["simulation"]["dropout"]["rate"] = rate
    return dordis.run(config, accept_hopeless=True)


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(InputError, match=r"there is no preset 'nothing': there are .*paper-femnist"):
        preset_text("nothing")


@pytest.mark.parametrize("name", [name for name in read_presets() if name.startswith("paper-")])
def test_the_paper_s_presets_have_the_paper_s_settings(name):
    config = tomllib.loads(preset_text(name))
    n, privacy, protocol = config["federation"]["per_round"], config["privacy"], config["protocol"]
    assert (privacy["bits"], privacy["headroom"], privacy["accounting"]) == (20, 3.0, "paper")
    assert (privacy["projection"], privacy["noise"]["scheme"]) == ("off", "exact")
    assert privacy["delta"] == pytest.approx(1 / config["federation"]["clients"])
    assert (protocol["mode"], protocol["colluders"]) == ("semi-honest", 0)
    assert protocol["threshold"] == protocol["tolerance"] == n // 2
    assert config["federation"]["selection"] == "uniform"
    assert config["simulation"]["dropout"]["stages"] == ["CollectInput"]


@hopeless
@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_orig_overspends_as_in_the_paper_and_xnoise_does_not(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spend(name, {"kind": "orig"}, 0.4).epsilon == pytest.approx(PAPER[name], abs=0.02)
    assert spend(name, {"kind": "xnoise", "scheme": "exact"}, 0.4).epsilon == pytest.approx(6.0, abs=1e-3)


@hopeless
@pytest.mark.slow
def test_conservative_shares_go_past_the_budget_only_if_more_clients_drop_out_than_guessed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def con(guess, rate):
        return spend("paper-reddit", {"kind": "conservative", "rate": guess, "overspend": True}, rate)

    assert con(0.2, 0.2).epsilon <= 6
    overspent = con(0.2, 0.4)
    assert overspent.epsilon > 6.5
    assert len(overspent.history) == 50
    assert con(0.8, 0.4).epsilon < 4


@hopeless
@pytest.mark.slow
def test_early_ends_before_it_passes_the_budget(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = spend("paper-reddit", {"kind": "early"}, 0.4)
    assert ended.epsilon <= 6
    assert 20 < len(ended.history) < 50

"""`dordis plan noise`: the noise of a run, for people and for programs."""

import json
import math
import re
from functools import partial
from pathlib import Path

import pytest
from scipy.stats import binom

from dordis.config.reading import read_config
from dordis.privacy.accounting import ParticipationSchedule
from dordis.privacy.planning import plan
from dordis.privacy.setting import Setting
from dordis.simulation.run import prepare
from tests.case_samples import sample_cases
from tests.cli.in_process import dordis

FEMNIST = ("--clients", "1000", "--per-round", "100", "--rounds", "50", "--dim", "1018174", "--delta", "1e-3")


run = partial(dordis, "plan")


def test_the_tables_show_noise_bits_bytes_and_dropout() -> None:
    shown = run(*FEMNIST, "--epsilon", "6")
    assert shown.returncode == 0, shown.stderr
    for expected in ("noise multiplier", "signal-to-noise per round", "bits per coordinate", "bytes per client"):
        assert expected in shown.stdout
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines()]
    assert ["0%", "0", "6.00", "4.36", "6.00", "0", "51"] in cells
    assert ["30%", "30", "7.59", "5.48", "6.00", "30", "51"] in cells
    assert ["40%", "40", "8.42", "6.07", "no output", "40", "51"] in cells
    assert "dropout that depends on a client's data is outside the guarantee" in shown.stdout


def test_a_dropout_rate_gets_the_threshold_that_it_needs() -> None:
    found = json.loads(run(*FEMNIST, "--epsilon", "6", "--dropout", "0.6", "--mode", "semi-honest", "--json").stdout)
    assert (found["tolerance"], found["threshold"]) == (60, 40)
    refused = run(*FEMNIST, "--epsilon", "6", "--dropout", "0.6")
    assert refused.returncode == 2
    assert "protocol.tolerance = 60 and protocol.threshold = 40" in refused.stderr


def test_lots_that_starve_later_rounds_are_told_with_a_cap_that_works() -> None:
    few = ("--clients", "60", "--per-round", "30", "--rounds", "2", "--dim", "650", "--epsilon", "6")
    starved = json.loads(run(*few, "--selection", "vrf", "--json").stdout)
    assert "federation.participations = 2" in starved["starved"]
    assert json.loads(run(*few, "--selection", "vrf", "--participations", "2", "--json").stdout)["starved"] is None
    assert json.loads(run(*few, "--json").stdout)["starved"] is None


def test_json_is_one_object_with_the_plan() -> None:
    shown = run(*FEMNIST, "--epsilon", "6", "--bits", "20", "--tolerance", "40", "--projection", "off", "--json")
    found = json.loads(shown.stdout)
    setting = Setting(ParticipationSchedule(1000, 100, 50), dim=1_018_174, delta=1e-3, bits=20, tolerance=40)
    expected = plan(setting, 6.0)
    assert (found["scale"], found["variance"]) == (expected.scale, str(expected.variance))
    assert (found["bits"], found["bytes_per_client"], found["participation_cap"]) == (20, 2_621_440, 5)
    assert [row["xnoise"] for row in found["dropout"]] == pytest.approx([6.0] * 5)
    assert found["central_gaussian_multiplier"] == pytest.approx(found["noise_multiplier"], rel=1e-6)
    assert 1 < found["times_trusted_server"] < 1.03  # for one colluder, and for rounding to the grid
    assert len(found["terms"]) == 3


@pytest.mark.parametrize("protocol", ["secagg", "secagg+"])
@pytest.mark.parametrize("n", sample_cases([10, 16, 37, 100, 199, 200], one_in=3))
def test_plan_and_run_agree_on_tolerance_threshold_and_noise(protocol: str, n: int) -> None:
    given = ("--clients", "400", "--per-round", n, "--rounds", "2", "--dim", "650", "--epsilon", "6", "--delta", "1e-5")
    planned = json.loads(run(*given, "--protocol", protocol, "--json").stdout)
    federation = ("federation.clients=400", f"federation.per_round={n}", "federation.rounds=2")
    config = read_config(
        keys=[*federation, f"protocol.use={protocol}", "privacy.delta=1e-5", "simulation.dropout.kind=none"]
    )
    job = prepare(config).job
    parameters = job.design.example()
    assert planned["tolerance"] == job.design.setting.T == parameters.tolerance
    assert planned["tolerance"] == (n // 10 if protocol == "secagg+" else 4 * (n - planned["threshold"]) // 5)
    assert (planned["threshold"], planned["variance"]) == (job.design.setting.t, str(job.design.plan.variance))
    assert (planned["base"], planned["removable"]) == tuple(
        [str(variance) for variance in part] for part in (job.design.plan.noise.base, job.design.plan.noise.removable)
    )


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (("--selection", "open"), ("federation.arrival=open",)),
        (("--selection", "open", "--participations", "3"), ("federation.arrival=open", "federation.participations=3")),
        (("--beacon",), ("deployment.beacon=published.txt",)),
        (("--selection", "vrf", "--tolerance", "11"), ("federation.selection=vrf", "protocol.tolerance=11")),
        (("--dropout", "0.25"), ("protocol.tolerance=10",)),
    ],
)
def test_plan_and_run_agree_on_assisted_rounds(options: tuple[str, ...], keys: tuple[str, ...]) -> None:
    given = ("--clients", "400", "--per-round", "40", "--rounds", "20", "--dim", "650", "--epsilon", "6")
    assisted = ("--delta", "1e-5", "--protocol", "assisted", "--colluders", "5", "--json")
    planned = json.loads(run(*given, *assisted, *options).stdout)
    common = ("federation.clients=400", "federation.per_round=40", "federation.rounds=20", "privacy.delta=1e-5")
    design = prepare(read_config(keys=[*common, "protocol.use=assisted", "protocol.colluders=5", *keys])).job.design
    setting = design.setting
    assert [planned[name] for name in ("tolerance", "threshold", "colluders", "participation_cap", "variance")] == [
        setting.T, setting.t, setting.colluders, design.cap, str(design.plan.variance)
    ]  # fmt: skip
    assert [row["threshold"] for row in planned["dropout"]] == [40 - row["dropped"] for row in planned["dropout"]]


def test_folding_saves_bytes_for_little_noise() -> None:
    unfolded, folded, given = (
        json.loads(run(*FEMNIST, "--epsilon", "6", "--projection", rule, "--json").stdout)
        for rule in ("off", "auto", "5000")
    )
    assert (unfolded["buckets"], unfolded["projection_error"], unfolded["bytes_unfolded"]) == (0, None, None)
    assert folded["noise_multiplier"] == pytest.approx(unfolded["noise_multiplier"], rel=1e-5)
    exact = 1_018_174 / (1 + 0.04 * 1_018_174 * folded["noise_multiplier"] ** 2 / 100**2)
    assert exact <= folded["buckets"] == folded["padded_dim"] <= 1.08 * exact
    assert folded["bytes_per_client"] < unfolded["bytes_per_client"] / 8
    assert 0.01 < folded["projection_error"] <= 0.02
    assert given["buckets"] == 8192  # whole blocks
    assert "8,192" in run(*FEMNIST, "--epsilon", "6", "--projection", "5000").stdout


def test_graphs_and_lots_that_may_fail_take_their_part_of_delta() -> None:
    options = ("--protocol", "secagg+", "--selection", "vrf", "--colluders", "20", "--epsilon", "6")
    found = json.loads(run(*FEMNIST, *options, "--json").stdout)
    assert found["failure"] == pytest.approx(5 * 50 * 2 * 2**-40)
    assert (found["delta"], found["colluders"], found["colluders_one_draw"]) == (1e-3, 20, 15)
    assert binom.sf(15, 20, 0.1) < 2**-40 < binom.sf(14, 20, 0.1)
    assert binom.sf(19, 20, 0.1) > 2**-104  # what one draw has once in 2^40, the best of 2^64 draws may have
    refused = run(*FEMNIST, *options, "--delta", "4e-10")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "not above 4.55e-10" in refused.stderr
    assert "--selection" in run(*FEMNIST, "--epsilon", "6", "--selection", "by-hand").stderr


def test_the_plan_shows_what_colluders_of_the_registry_cost() -> None:
    options = (*FEMNIST, "--epsilon", "6", "--colluders", "60")
    drawn, together, lots = (
        json.loads(run(*options, *more, "--json").stdout) for more in (["--beacon"], [], ["--selection", "vrf"])
    )
    assert [found["all_colluders"] for found in (drawn, together, lots)] == [60] * 3
    assert drawn["colluders_one_draw"] < drawn["colluders"] < together["colluders"] == 60
    assert drawn["colluders"] < lots["colluders"] < 60
    assert 1.1 < drawn["colluders_noise"] < lots["colluders_noise"] < together["colluders_noise"]
    text = " ".join(run(*options, "--beacon").stdout.replace("│", " ").split())
    assert f"{drawn['colluders']}, in the worst of 2^64 draws" in text


def test_noise_gives_back_the_budget_it_was_planned_for() -> None:
    planned = json.loads(run(*FEMNIST, "--epsilon", "6", "--accounting", "all-rounds", "--json").stdout)
    noise = ("--sigma", str(planned["sigma"]), "--bits", str(planned["bits"]), "--accounting", "all-rounds")
    accounted = json.loads(run(*FEMNIST, *noise, "--json").stdout)
    assert accounted["epsilon"] == pytest.approx(6.0, abs=1e-4)
    assert accounted["scale"] == pytest.approx(planned["scale"], rel=1e-6)


def test_a_clip_bound_that_follows_a_quantile_takes_its_share_of_the_budget() -> None:
    fixed, followed = (
        json.loads(run(*FEMNIST, "--epsilon", "6", "--bits", "20", "--clip-share", share, "--json").stdout)
        for share in ("0", "0.1")
    )
    assert fixed["clipping_bit_multiplier"] is None
    assert followed["epsilon"] <= 6.0
    assert followed["noise_multiplier"] == pytest.approx(fixed["noise_multiplier"] / math.sqrt(0.9), rel=0.01)
    assert followed["clipping_bit_multiplier"] == pytest.approx(fixed["noise_multiplier"] / math.sqrt(0.1), rel=0.01)
    assert 0 < followed["fraction_below_error"] < 0.05
    assert "error of the share of norms" in run(*FEMNIST, "--epsilon", "6", "--clip-share", "0.1").stdout


PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\$ dordis plan (.*)\n((?:.+\n)+)```", PAGE)


@pytest.mark.parametrize(("options", "sentences"), SHOWN, ids=["10", "1000", "100000"])
def test_a_plan_ends_with_the_sentences_that_the_page_shows(options: str, sentences: str) -> None:
    shown = run(*options.split())
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.endswith("\n\n" + sentences)


def test_one_round_of_two_clients_is_spoken_of_as_such() -> None:
    shown = run("--clients", "2", "--per-round", "2", "--rounds", "1", "--dim", "10", "--epsilon", "1")
    assert "The one round has a ratio of 0.119" in shown.stdout
    assert "with these clients, no model is small enough." in shown.stdout
    assert "2 clients a round and 1 round, " in shown.stdout


def test_programs_get_the_same_advice() -> None:
    found = json.loads(run(*FEMNIST, "--epsilon", "25", "--protocol", "secagg+", "--json").stdout)
    assert found["signal_to_noise_run"] == pytest.approx(found["signal_to_noise"] * math.sqrt(50))
    assert list(found["larger_cohorts"]) == ["200", "400", "1000"]
    assert (found["chosen"]["per_round"], found["chosen"]["rounds"]) == (1000, 50)
    assert found["chosen"]["signal_to_noise_run"] == found["larger_cohorts"]["1000"]
    assert len(found["warnings"]) == 2  # delta = 1/N, and epsilon
    assert len(found["advice"]) == 7


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--clients", "1000", "--epsilon", "6"), "--per-round"),
        (FEMNIST, "either --epsilon"),
        ((*FEMNIST, "--epsilon", "6", "--sigma", "1"), "either --epsilon"),
        ((*FEMNIST, "--epsilon", "0"), "epsilon is a number above 0, not 0.0"),
        ((*FEMNIST, "--epsilon", "nan"), "epsilon is a number above 0"),
        ((*FEMNIST, "--sigma", "0"), "sigma is a number above 0"),
        ((*FEMNIST, "--epsilon", "6", "--bits", "12", "--projection", "off"), "the fewest bits that work are 13"),
        ((*FEMNIST, "--epsilon", "6", "--projection", "few"), "--projection"),
        ((*FEMNIST, "--epsilon", "6", "--bits", "many"), "--bits"),
        ((*FEMNIST, "--epsilon", "6", "--clip", "0"), "clip"),
        ((*FEMNIST, "--epsilon", "6", "--delta", "1"), "delta"),
        ((*FEMNIST, "--epsilon", "6", "--dim", "0"), "coordinates"),
        ((*FEMNIST, "--epsilon", "6", "--tolerance", "50"), "dropout tolerance 50"),
        ((*FEMNIST, "--epsilon", "6", "--tolerance", "5", "--dropout", "0.1"), "not both"),
        ((*FEMNIST, "--epsilon", "6", "--accounting", "none"), "accounting"),
        ((*FEMNIST, "--epsilon", "6", "--selection", "open"), "with 'assisted', 'open'"),
        ((*FEMNIST, "--epsilon", "6", "--clip-share", "1"), "part of the budget"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused_in_one_line(arguments: tuple[str, ...], reason: str) -> None:
    shown = run(*arguments)
    assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert reason in shown.stderr

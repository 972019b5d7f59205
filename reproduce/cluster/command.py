"""Measure rounds on a local cluster, or read those of a cluster of one's own, and compare them with predictions."""

import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from dordis.errors import InputError, MissingExtra
from dordis.records.run_records import RoundRecord, load_run
from reproduce.cluster.experiment import AUTO, Workload, run_experiment
from reproduce.cluster.links import Link, plan_links
from reproduce.cluster.results import (
    ClusterResults,
    Setting,
    add_setting,
    read_results,
    summarise_rounds,
    write_results,
)
from reproduce.cluster.training import measure_training
from reproduce.costs import Costs

COSTS = Path(__file__).parents[2] / "docs" / "results" / "rounds" / "costs.json"


def parse_chunks(text: str) -> list[int]:
    """Read numbers of chunks and `auto`, separated by commas.

    >>> parse_chunks("1,4,auto")
    [1, 4, 0]
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word == "auto" or (word.isdecimal() and int(word) > 0) for word in words):
        raise InputError(f"--chunks has numbers above 0 and auto, separated by commas, such as 1,4,auto: got '{text}'")
    return [AUTO if word == "auto" else int(word) for word in dict.fromkeys(words)]


def measure_local(workload: Workload, links: Sequence[Link], command: str = "") -> Setting:
    """Run the rounds of a workload behind links on this machine; return them with predictions."""
    records = run_experiment(workload, links)
    auto = records.pop(AUTO, [])
    cores = os.cpu_count() or 1
    found = summarise_rounds([record for rounds in records.values() for record in rounds], auto, links, costs(), cores)
    return msgspec.structs.replace(found, load=round(os.getloadavg()[1], 1), command=command)


def read_own(runs: Iterable[Path]) -> Setting:
    """Read the rounds of a cluster of one's own from the directories of its runs, without each run's first round."""
    rounds: list[RoundRecord] = []
    for path in runs:
        rounds.extend(load_run(path).rounds[1:])
    return summarise_rounds(rounds, [], (), None, 0)


def costs() -> Costs | None:
    """Return the measured costs of steps from `COSTS`, or None if there is no such file."""
    return msgspec.json.decode(COSTS.read_bytes(), type=Costs) if COSTS.exists() else None


def keep_setting(setting: Setting, path: Path | None) -> ClusterResults:
    """Add a setting to the results in the file `path`, if one is given, and return all results."""
    known = read_results(path) if path is not None and path.exists() else ClusterResults()
    try:
        training = measure_training() if known.training is None else known.training
    except MissingExtra:
        training = None
    results = msgspec.structs.replace(add_setting(known, setting), training=training)
    if path is not None:
        write_results(results, path)
    return results


def describe_command(workload: Workload, text: str, slower: float, latency: float, slowness: float, seed: int) -> str:
    """Return the command line that measures this again."""
    words = ["python", "-m", "reproduce", "cluster", "--local", workload.clients, "--dim", workload.dim]
    words += ["--chunks", text, "--rounds", workload.rounds, "--repeats", workload.repeats]
    options = {"--dropout": workload.dropout, "--slower": slower, "--latency": latency, "--slowness": slowness}
    words += [word for name, value in options.items() for word in (name, f"{value:g}")]
    return " ".join(shlex.quote(str(word)) for word in [*words, "--seed", seed])


def plan_and_measure(
    workload: Workload, text: str, slower: float, latency: float, slowness: float, seed: int
) -> Setting:
    """Plan links for the clients of a workload, and measure its rounds behind these links."""
    links = plan_links(workload.clients, seed, slower, latency, slowness)
    return measure_local(workload, links, describe_command(workload, text, slower, latency, slowness, seed))

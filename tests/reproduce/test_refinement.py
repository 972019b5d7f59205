"""Refining the model chunk by chunk: what it would hide at most."""

import pytest

from reproduce.refinement import Refinement, compare_refinement


def test_all_steps_but_the_last_chunk_s_could_be_hidden() -> None:
    assert Refinement(100, 5, 2.0, 0.3, 0.05).hidden == pytest.approx(0.1)


def test_decoding_and_steps_are_measured_beside_a_predicted_round() -> None:
    (found,) = compare_refinement([10_000]).data  # type: ignore[misc]
    assert found["decode"] > 0
    assert found["round"] > 7 * 0.1  # six round trips of 0.1 seconds, and training
    assert found["hidden"] == pytest.approx(7 * found["step"] / found["round"])

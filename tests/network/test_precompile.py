"""Precompilation runs a whole round with a dropout."""

from dordis.network.precompile import CLIENTS, DROPOUT, compile_kernels


def test_the_compiling_round_has_a_sum_without_the_dropout():
    output = compile_kernels()
    assert set(output.survivors) == set(CLIENTS) - {DROPOUT}
    assert output.total.any()  # zero updates, and the noise of the survivors

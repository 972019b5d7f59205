"""Measure dordis beside the limit of the hardware and beside other libraries: `python -m benchmarks SUITE`."""

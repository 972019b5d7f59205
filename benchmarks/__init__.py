"""Measure dordis beside the limit of the hardware and beside what others offer: `python -m benchmarks SUITE`."""

"""Set numba up when this is imported, not when a first kernel is called: for a process that others are forked from.

It takes a third of a second of CPU.
"""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()

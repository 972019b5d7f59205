"""Set up numba on import instead of at the first kernel call, for a process from which others are forked.

It takes a third of a second of CPU.
"""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()

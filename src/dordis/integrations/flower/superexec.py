"""A Flower SuperExec whose ClientApps start fast: they are forked from a process that has imported their modules.

Flower starts a process for each message.  A private round with SecAgg takes six to eight messages, and importing Flower
is most of the work of such a process.  With `--isolation process` a SuperNode lets a SuperExec start these processes.
This SuperExec takes the arguments of `flower-superexec`; every message still has its own process.
"""

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any

IMPORTED = (
    "flwr.supernode.runtime.run_clientapp",
    "dordis.integrations.flower.mod",
    "dordis.protocols.secagg",
    "dordis.integrations.flower.superexec",
)
"""Modules imported before a fork; the app is loaded after the fork, from the bundle of the message's run."""
POLL = ("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2")
"""Flower's environment variable for the seconds between two polls of a SuperExec for messages; its default here."""


def launcher(context: ForkServerContext, otherwise: Any) -> Any:
    """Return the function that starts Flower's tasks: by a fork for a ClientApp, by `otherwise` for other tasks."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import LaunchResult
    from flwr.supercore.tls import validate_and_resolve_root_certificates
    from flwr.supernode.runtime.run_clientapp import run_clientapp

    def launch(executor: Any, spec: Any) -> Any:
        if spec.task_type != TaskType.CLIENT_APP:
            return otherwise(executor, spec)
        settings = {
            "runtime_api_address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "certificates": validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
            "parent_pid": spec.parent_pid,
            "runtime_dependency_install": spec.runtime_dependency_install,
        }
        context.Process(target=run_clientapp, kwargs=settings).start()
        return LaunchResult.accepted()

    return launch


def main() -> None:
    """Run Flower's SuperExec with forked ClientApps."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    os.environ.setdefault(*POLL)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    forkserver.ensure_running()  # now, so that the modules are imported while the node connects
    SubprocessExecutor.launch = launcher(context, SubprocessExecutor.launch)
    flower_superexec()


if __name__ == "__main__":
    main()
else:  # imported before a fork: set up numba now, which takes a third of a second of CPU, not at the first kernel call
    from numba.core.registry import cpu_target

    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()

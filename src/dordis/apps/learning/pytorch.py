"""PyTorch itself: imported when it is first needed, its threads, seeds and devices, and its optimisers."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dordis.apps.learning import trainer
from dordis.apps.learning.trainer import Training
from dordis.errors import InputError, MissingExtra


def import_torch() -> Any:
    """Import torch when it is first needed."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtra("torch") from error
    return torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have torch, if it is imported, draw from a seed, and go on as before afterwards."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    begin = torch.manual_seed if accelerator(torch) else torch.default_generator.manual_seed  # a tenth of the time
    with torch.random.fork_rng(devices=[]):
        begin(seed)
        yield


def accelerator(torch: Any) -> str:
    """Return the name of a graphics processor, or nothing if there is none."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else ""


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Have torch use so many threads for one operation, or as many as before if None, until the end."""
    torch = import_torch()
    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_named(name: str) -> Any:
    """Return the device of this name; "auto" is the first graphics processor, or else the processor."""
    torch = import_torch()
    if name == "auto":
        name = accelerator(torch) or "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"there is no device '{name}': pass auto or cpu ({str(error).splitlines()[0]})") from None


def optimiser_of(tensor: Any, how: Training) -> Any:
    """Return what takes the steps of a training: SGD with momentum, or AdamW."""
    optim = import_torch().optim
    if how.method == "adamw":
        betas = (how.momentum, trainer.BETA2)
        return optim.AdamW([tensor], how.lr, betas, trainer.TINY, weight_decay=how.decay)
    return optim.SGD([tensor], how.lr, how.momentum, weight_decay=how.decay)


def number_of(seed: Sequence[int]) -> int:
    """Return one number for torch of the numbers of a seed."""
    return int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])

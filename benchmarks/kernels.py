"""The kernels in one process, beside the limit of the hardware and beside what others offer."""

import importlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.figure import Figure
from benchmarks.timing import best, best_wall, ratio, repetitions, side_by_side
from dordis.crypto import agreement, prg, sharing, signature
from dordis.kernels import hadamard, ring
from dordis.privacy import skellam_noise
from dordis.privacy.skellam_noise import build_table, round_up_variance

MILLION = 2**20
KEYS = 16
CALL = 1 << 18
VARIANCES = {name: round_up_variance(Fraction(name)) for name in ("0.1", "10", "1e3", "1e5", "1e7", "1e9")}

_ZEROS, _KEYSTREAM = bytes(CALL), bytearray(CALL)

FIGURES = {
    "mask_vs_aes_ctr_20": Figure("of AES-CTR", at_least=0.6, note="16 keys, 2^20 coordinates, b = 20"),
    "mask_vs_aes_ctr_32": Figure("of AES-CTR", at_least=0.7, note="the same, b = 32"),
    "mask_vs_aes_ctr": Figure("of AES-CTR", at_least=0.6, note="the smaller of the two"),
    "mask_two_threads": Figure("times", at_least=1.6, note="one thread's time over two threads' time, on the clock"),
    "aes_ctr_two_threads": Figure(
        "times", note="the same for bare AES-CTR: whether the machine had two cores to spare"
    ),
    "flwr_mask_ratio": Figure("times", note="Flower's time over ours for a mask of 2^20 at b = 20"),
    **{f"noise_ns_{name}": Figure("ns/sample", at_most=1.6, note=f"variance {name}") for name in VARIANCES},
    "noise_vs_numpy_min": Figure(
        "times", at_least=25, note="numpy's two Poissons over ours, worst variance from 10 on"
    ),
    "table_s_1e9": Figure("s", note="building the cell table of variance 1e9, once"),
    "hadamard_1M_ms": Figure("ms", at_most=5, note="2^20 float32, signs included"),
    "hadamard_16M_ms": Figure("ms", at_most=150, note="2^24 float32, signs included"),
    "hadamard_vs_numpy": Figure("times", note="numpy's butterfly without signs over ours, 2^20"),
    "pack_20_ns": Figure("ns/element", at_most=0.5),
    "unpack_20_ns": Figure("ns/element", at_most=0.5),
    "shamir_share_ms": Figure("ms", at_most=5, note="100 secrets, n = 100, t = 51"),
    "shamir_reconstruct_ms": Figure("ms", at_most=5, note="100 secrets from 51 shares each, weights included"),
    "shamir_share_1000_ms": Figure("ms", at_most=100, note="100 secrets, n = 1000, t = 500"),
    "shamir_vs_pycryptodome": Figure("times", note="both ways; theirs extrapolated from half a secret (16 bytes)"),
    "x25519_per_s": Figure("1/s", note="agreements"),
    "ed25519_verify_per_s": Figure("1/s", note="verifications"),
    "client_import_cpu_s": Figure("s", at_most=0.6, note="CPU of `import dordis.rounds.client` in a new process, best"),
    "warm_start_s": Figure("s", at_most=2, note="a new process that calls every kernel once, machine code cached"),
    "help_s": Figure("s", at_most=1, note="dordis --help in a new process"),
    "cold_start_s": Figure("s", note="the same with nothing cached"),
}


def run(quick: bool) -> dict[str, float]:
    """Measure everything; a quick run leaves out the cold start."""
    families: tuple[Callable[[bool], dict[str, float]], ...] = (_mask, _noise, _rotation, _packing, _shamir, _curve)
    values: dict[str, float] = {}
    for family in families:
        values |= family(quick)
    return values | (_warm_start() if quick else _starts())


def _mask(quick: bool) -> dict[str, float]:
    count = repetitions(60, quick)
    acc = np.zeros(MILLION, np.uint32)
    streams = [prg.Stream.from_bytes(secrets.token_bytes(prg.STREAM_BYTES)) for _ in range(KEYS)]

    def add(bits: int, threads: int = 1) -> None:
        prg.add_masks(acc, streams[: KEYS // 2], streams[KEYS // 2 :], bits, threads=threads)

    at_20 = ratio(lambda: _bare_keystream(KEYS * MILLION * 3), lambda: add(20), count)
    at_32 = ratio(lambda: _bare_keystream(KEYS * MILLION * 4), lambda: add(32), count)
    figures = {"mask_vs_aes_ctr_20": at_20, "mask_vs_aes_ctr_32": at_32, "mask_vs_aes_ctr": min(at_20, at_32)}
    one, two, bare_one, bare_two = side_by_side(
        [lambda: add(20), lambda: add(20, threads=2), lambda: _bare_in_threads(1), lambda: _bare_in_threads(2)],
        repetitions(200, quick),
        time.perf_counter,
    )
    figures |= {"mask_two_threads": one / two, "aes_ctr_two_threads": bare_one / bare_two}
    flower = _optional("flwr.common.secure_aggregation.secaggplus_utils")
    if flower:
        seed = secrets.token_bytes(32)
        theirs = ratio(lambda: flower.pseudo_rand_gen(seed, 2**20, [(MILLION,)]), lambda: add(20), count)
        figures["flwr_mask_ratio"] = theirs * KEYS  # one mask of theirs against all of ours
    return figures


def _bare_keystream(size: int, out: bytearray = _KEYSTREAM) -> None:
    """Make keystream and throw it away: no mask can be faster."""
    context = Cipher(algorithms.AES128(bytes(16)), modes.CTR(bytes(16))).encryptor()
    for _ in range(size // CALL):
        context.update_into(_ZEROS, out)


def _bare_in_threads(threads: int) -> None:
    prg.run_in_threads(
        lambda at, end: partial(_bare_keystream, end - at, bytearray(CALL)), 0, KEYS * MILLION * 3, threads
    )


def _noise(quick: bool) -> dict[str, float]:
    acc = np.zeros(MILLION, np.uint32)
    generator = np.random.Generator(np.random.PCG64())
    few = MILLION // 32
    figures, ratios = {}, []
    for name, variance in VARIANCES.items():

        def ours(variance: Fraction = variance) -> None:
            skellam_noise.add_noise(acc, os.urandom(prg.SEED_BYTES), variance)

        def theirs(mean: float = float(variance) / 2) -> object:
            return generator.poisson(mean, few) - generator.poisson(mean, few)

        ours_s, theirs_s = side_by_side([ours, theirs], repetitions(200, quick))
        figures[f"noise_ns_{name}"] = ours_s / MILLION * 1e9
        if variance >= 10:
            ratios.append((theirs_s / few) / (ours_s / MILLION))
    figures["noise_vs_numpy_min"] = min(ratios)
    figures["table_s_1e9"] = best(lambda: build_table(10**9), 1 if quick else 3)
    return figures


def _rotation(quick: bool) -> dict[str, float]:
    generator = np.random.Generator(np.random.PCG64())
    x = generator.standard_normal(MILLION, np.float32)
    signs = generator.integers(0, 256, MILLION // 8, np.uint8)
    theirs_s, ours_s = side_by_side(
        [lambda: _butterfly(x), lambda: hadamard.rotate(x, MILLION, signs)], repetitions(60, quick)
    )
    long = generator.standard_normal(16 * MILLION, np.float32)
    long_signs = generator.integers(0, 256, 2 * MILLION, np.uint8)
    long_s = best(lambda: hadamard.rotate(long, 16 * MILLION, long_signs), repetitions(40, quick))
    return {"hadamard_1M_ms": ours_s * 1e3, "hadamard_16M_ms": long_s * 1e3, "hadamard_vs_numpy": theirs_s / ours_s}


def _butterfly(x: npt.NDArray[np.float32]) -> None:
    """Transform in place the way numpy users do: one level at a time."""
    half = 1
    while half < x.size:
        pairs = x.reshape(-1, 2, half)
        total = pairs[:, 0] + pairs[:, 1]
        np.subtract(pairs[:, 0], pairs[:, 1], out=pairs[:, 1])
        pairs[:, 0] = total
        half *= 2
    x *= np.float32(x.size**-0.5)


def _packing(quick: bool) -> dict[str, float]:
    values = np.random.Generator(np.random.PCG64()).integers(0, 2**20, MILLION, np.uint32)
    packed = ring.pack(values, 20)
    unpacked = np.empty(MILLION, np.uint32)
    pack_s, unpack_s = side_by_side(
        [lambda: ring.pack(values, 20, packed), lambda: ring.unpack(packed, 20, MILLION, unpacked)],
        repetitions(400, quick),
    )
    return {"pack_20_ns": pack_s / MILLION * 1e9, "unpack_20_ns": unpack_s / MILLION * 1e9}


def _shamir(quick: bool) -> dict[str, float]:
    hidden = [secrets.token_bytes(sharing.SECRET_BYTES) for _ in range(100)]
    points, many = range(1, 101), range(1, 1001)
    shares = sharing.split(hidden, points, 51)[:51]
    share_s, reconstruct_s = side_by_side(
        [
            lambda: sharing.split(hidden, points, 51),
            lambda: sharing.Interpolation(points[:51], 51).combine(shares),
        ],
        repetitions(200, quick),
    )
    many_s = best(lambda: sharing.split(hidden, many, 500), repetitions(40, quick))
    figures = {
        "shamir_share_ms": share_s * 1e3,
        "shamir_reconstruct_ms": reconstruct_s * 1e3,
        "shamir_share_1000_ms": many_s * 1e3,
    }
    pycryptodome = _optional("Crypto.Protocol.SecretSharing")
    if pycryptodome:
        shamir = pycryptodome.Shamir
        half = shamir.split(51, 100, bytes(16))[:51]
        halves_s = side_by_side([lambda: shamir.split(51, 100, bytes(16)), lambda: shamir.combine(half)], 2)
        figures["shamir_vs_pycryptodome"] = 2 * len(hidden) * sum(halves_s) / (share_s + reconstruct_s)
    return figures


def _curve(quick: bool) -> dict[str, float]:
    private, peer = agreement.generate(), agreement.public_key(agreement.generate())
    signing, message = signature.generate(), secrets.token_bytes(100)
    verifying, signed = signature.public_key(signing), signature.sign(signing, message)
    agree_s, verify_s = side_by_side(
        [lambda: agreement.agree(private, peer), lambda: signature.verify(verifying, message, signed)],
        repetitions(2000, quick),
    )
    return {"x25519_per_s": 1 / agree_s, "ed25519_verify_per_s": 1 / verify_s}


def _warm_start(cache: dict[str, str] | None = None, count: int = 1) -> dict[str, float]:
    """Time a new process whose kernels are cached: the turn that is not counted sees to that."""
    return {
        "client_import_cpu_s": min(_import_seconds("dordis.rounds.client") for _ in range(3 * count)),
        "warm_start_s": best_wall(lambda: _in_new_process("benchmarks.cold_start", environment=cache or {}), count),
        "help_s": best_wall(lambda: _in_new_process("dordis", "--help"), count),
    }


def _import_seconds(module: str) -> float:
    """Return the CPU seconds that an import takes in a new process."""
    script = f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return float(run.stdout)


def _starts() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as empty:
        cache = {"NUMBA_CACHE_DIR": empty}
        start = time.perf_counter()
        _in_new_process("benchmarks.cold_start", environment=cache)
        cold = time.perf_counter() - start
        return _warm_start(cache, 3) | {"cold_start_s": cold}


def _in_new_process(module: str, *arguments: str, environment: Mapping[str, str] = os.environ) -> None:
    subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
    )


def _optional(name: str) -> ModuleType | None:
    """Import what need not be installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None

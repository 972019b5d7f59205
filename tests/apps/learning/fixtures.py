"""Small files in the exact formats of real data sets, made by the tests."""

import gzip
import json
import struct

import numpy as np


def rng():
    return np.random.default_rng(3)


def write_idx(folder, prefix="", parts=(("train", 30), ("t10k", 10)), gzipped=True, first=0):
    """Write MNIST's four files: big-endian sizes after a magic number, then bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for part, count in parts:
        images = rng().integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 10 + first).astype(np.uint8)
        files = {
            f"{prefix}{part}-images-idx3-ubyte": struct.pack(">IIII", 2051, count, 28, 28) + images.tobytes(),
            f"{prefix}{part}-labels-idx1-ubyte": struct.pack(">II", 2049, count) + labels.tobytes(),
        }
        for name, data in files.items():
            (folder / (f"{name}.gz" if gzipped else name)).write_bytes(gzip.compress(data) if gzipped else data)
        made[part] = images, labels
    return made


def write_cifar10(folder, count=8):
    """Write CIFAR-10's binary version: a label, then the red, green and blue channels row by row."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = rng()
    made = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        images = draw.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        records = b"".join(bytes([y]) + x.tobytes() for x, y in zip(images, labels, strict=True))
        (folder / f"{name}.bin").write_bytes(records)
        made[name] = images, labels
    return made


def write_cifar100(folder, count=12):
    """Write CIFAR-100's: a coarse label before the fine one."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = rng()
    for name in ("train", "test"):
        images = draw.integers(0, 256, (count, 3072), dtype=np.uint8)
        fine = np.arange(count, dtype=np.uint8) * 8
        records = b"".join(bytes([y // 5, y]) + x.tobytes() for x, y in zip(images, fine, strict=True))
        (folder / f"{name}.bin").write_bytes(records)


def write_leaf(path, user_data):
    """Write one file as LEAF's preprocessing does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(data["y"]) for data in user_data.values()]
    path.write_text(json.dumps({"users": list(user_data), "num_samples": sizes, "user_data": user_data}))


def femnist_users(names, samples=4, size=784, classes=62):
    """Return users as FEMNIST has them: pixels from 0 to 1, and a class."""
    draw = rng()
    return {
        name: {"x": draw.random((samples, size)).round(3).tolist(), "y": draw.integers(0, classes, samples).tolist()}
        for name in names
    }


def write_femnist(folder, users=6, size=784, classes=62):
    """Write two files to train on and one to test with."""
    names = [f"f{i:04}_{i:02}" for i in range(users)]
    for part, number, held, samples in (
        ("train", 0, names[:-2], 4),
        ("train", 1, names[-2:], 4),
        ("test", 0, names, 2),
    ):
        name = f"all_data_{number}_niid_0_keep_0_{part}_9.json"
        write_leaf(folder / part / name, femnist_users(held, samples, size, classes))


def write_shakespeare(folder):
    """Write roles with lines of 80 characters and the one that follows."""
    text = "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer, perchance to dream ay"
    lines = {"x": [text[i : i + 80] for i in range(10)], "y": [text[i + 80] for i in range(10)]}
    for part in ("train", "test"):
        write_leaf(folder / part / f"all_data_{part}_9.json", {"HAMLET": lines, "OPHELIA_É": lines})


def write_reddit(folder):
    """Write users with comments: sequences of words, the words that follow, and how many these are."""
    x = [[["<BOS>", "hello", "there", "<EOS>", "<PAD>"]], [["<BOS>", "a", "b"], ["c", "<EOS>"]]]
    y = [
        {"target_tokens": [["hello", "there", "<EOS>", "<PAD>"]], "count_tokens": 3},
        {"target_tokens": [["a", "b", "c"], ["<EOS>"]], "count_tokens": 4},
    ]
    for part, names in (("train", ("u1", "u2", "u3")), ("test", ("u1", "u2", "u3", "u4"))):
        write_leaf(folder / part / f"{part}_data.json", {name: {"x": x, "y": y} for name in names})


def hospitals(count=60, rows=12):
    """Return a table: whose a row is, two features, and a label that a line divides."""
    x = rng().normal(size=(count, rows, 2)).round(4)
    lines = [f"h{i:02},{a},{b},{int(a - 0.5 * b > 0)}" for i, held in enumerate(x) for a, b in held]
    return "\n".join(["hospital,pressure,age,ill", *lines, ""])

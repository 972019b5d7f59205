"""Small folders in LEAF's two forms of texts, drawn from a chain whose next word depends on the one before."""

import json

import numpy as np

WORDS = [f"w{i}" for i in range(12)]


def chain(rng):
    """Return the chances of the next word after each; END is the last column, BEGIN the last row."""
    return rng.dirichlet(np.full(len(WORDS) + 1, 0.3), size=len(WORDS) + 1)


def sentence(rng, chances):
    state, written = len(WORDS), ["<BOS>"]
    while len(written) < 9:
        state = int(rng.choice(len(WORDS) + 1, p=chances[state]))
        if state == len(WORDS):
            break
        written.append(WORDS[state])
    return [*written, "<EOS>"]


def comments(rng, chances, count):
    x, y = [], []
    for _ in range(count):
        written = sentence(rng, chances)
        x.append([written[:-1]])
        y.append({"target_tokens": [written[1:]], "count_tokens": len(written) - 1})
    return {"x": x, "y": y}


def write(folder, parts):
    """Write users by part: train and test."""
    for part, data in parts.items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        sizes = [len(user["y"]) for user in data.values()]
        file = {"users": list(data), "num_samples": sizes, "user_data": data}
        (folder / part / "all.json").write_text(json.dumps(file))
    return folder


def chats(folder, users, count=6, seed=0):
    """Write chats of users, each of whom also has a word of its own."""
    rng = np.random.default_rng(seed)
    chances = chain(rng)
    train = {f"u{u}": comments(rng, chances, count) for u in range(users)}
    for u in range(users):
        train[f"u{u}"]["x"].append([["<BOS>", f"own{u}"]])
        train[f"u{u}"]["y"].append({"target_tokens": [[f"own{u}", "<EOS>"]], "count_tokens": 2})
    test = {f"u{u}": comments(rng, chances, count) for u in range(users)}
    return write(folder, {"train": train, "test": test})

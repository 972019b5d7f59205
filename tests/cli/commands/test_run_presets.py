"""`dordis run` on real formats: the presets of the paper, a loss of one's own, and mistakes in one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from dordis.apps.learning import Settings
from dordis.cli.options import PRESETS
from dordis.config import read_presets, reading
from tests.apps.learning import fixtures
from tests.cli.in_process import dordis

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")

SECTION_6_1 = {
    # clients, a round, rounds; epochs, batch, lr, momentum; clip, delta
    "femnist": ("cnn", 1000, 100, 50, 2, 20, 0.01, 0.9, 1.0, 1 / 1000),
    "cifar10": ("resnet18", 100, 16, 150, 1, 128, 0.005, 0.9, 3.0, 1 / 100),
    "cifar100": ("resnet18", 100, 16, 150, 1, 128, 0.005, 0.9, 3.0, 1 / 100),
    "reddit": ("albert", 200, 20, 50, 2, 20, 8e-5, 0.9, 5.0, 1 / 200),
}


def test_the_help_names_every_preset():
    assert {"digits", *PRESETS.split(", ")} == set(read_presets())


@pytest.mark.parametrize("name", SECTION_6_1)
def test_presets_have_the_hyperparameters_of_the_paper(name):
    config = reading.read_config(preset=name)
    options = Settings(**{key: value for key, value in config.app.options.items() if not isinstance(value, dict)})
    federation, privacy = config.federation, config.privacy
    found = (options.model, federation.clients, federation.per_round, federation.rounds, options.epochs, options.batch,
             options.lr, options.momentum, privacy.clip, privacy.delta)  # fmt: skip
    assert found == SECTION_6_1[name]
    assert privacy.epsilon == 6
    assert options.method == ("adamw" if name == "reddit" else "sgd")


def small(**keys):
    keys = {"simulation.fidelity": "ideal", "federation.rounds": 1, "simulation.dropout.kind": "none"} | keys
    return [part for key, value in keys.items() for part in ("-c", f"{key}={value}")]


def test_femnist_merges_three_users_and_prints_accuracy_epsilon_and_seconds(tmp_path):
    fixtures.write_femnist(tmp_path / "femnist", users=31)
    keys = small(**{"federation.clients": 10, "federation.per_round": 6, "app.options.model": "softmax"})
    done = dordis("run", "--preset", "femnist", "--data-dir", ".", *keys, "--yes", "--json", cwd=tmp_path)
    told = json.loads(done.stdout)
    assert told["clients"] == "clients = 10 groups of 3 users, from the LEAF files; 1 user left out"
    assert told["measured"].startswith("test data = 2 inputs of 1 user held out, no clients among them; 60 inputs")
    assert 0 <= told["accuracy"] <= 1
    assert 0 < told["epsilon"] <= 6
    assert told["seconds"] > 0


@pytest.mark.slow
def test_reddit_prints_perplexity(tmp_path):
    pytest.importorskip("transformers", reason="the extra 'nlp' is not installed")
    fixtures.write_reddit(tmp_path)
    tiny = "{hidden_size=16, num_attention_heads=2, intermediate_size=16, num_hidden_layers=1, embedding_size=8}"
    keys = small(**{"federation.clients": 3, "federation.per_round": 3, "app.options.vocabulary": 50,
                    "app.options.options": tiny, "privacy.noise.kind": "none"})  # fmt: skip
    done = dordis("run", "--preset", "reddit", "--data-dir", ".", *keys, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["perplexity"] > 1


def test_a_loss_of_ones_own_is_a_client_of_25_lines(tmp_path):
    text = (EXAMPLES / "own_application" / "your_loss.py").read_text()
    client = text[text.index("class Client") : text.index("class Server")].strip()
    assert len(client.splitlines()) <= 25
    (tmp_path / "your_loss.py").write_text(text)
    keys = small(**{"app.server": "your_loss:Server", "app.client": "your_loss:Client", "federation.rounds": 6,
                    "federation.clients": 20, "federation.per_round": 10, "privacy.noise.kind": "none"})  # fmt: skip
    told = json.loads(dordis("run", *keys, "--json", cwd=tmp_path).stdout)
    assert told["slope"] == pytest.approx(0.5, abs=0.1)
    assert told["quantile"] == pytest.approx(0.9, abs=0.1)


MODELS = """\
import torch

def wide(features, classes):
    return torch.nn.Linear(features, classes + 1)

class Endless(torch.nn.Linear):
    def forward(self, x):
        scores = super().forward(x)
        return scores if self.training or len(x) < 3 else scores * float("inf")
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-c", "app.options.model=models:wide"), "scores of shape (2, 11)"),
        (("-c", "app.options.model=models:Endless"), "finite"),
        (("-c", "app.options.model=albert"), "data of words"),
        (("--preset", "femnist", "--data-dir", "."), "there is no femnist in"),
        (("--preset", "cifar10", "--data-dir", "broken"), "is no binary CIFAR file"),
        (("--preset", "cifar100"), "cannot download"),
        (("-c", "app.options.data=rows.npz", "-c", "app.options.model=cnn"), "takes images"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, arguments, words, monkeypatch):
    (tmp_path / "models.py").write_text(MODELS)
    fixtures.write_cifar10(tmp_path / "broken")
    (tmp_path / "broken" / "data_batch_1.bin").write_bytes(b"123")
    np.savez(tmp_path / "rows.npz", x_train=np.zeros((300, 9)), y_train=np.arange(300) % 2)
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:1")  # nothing is downloaded
    monkeypatch.setenv("DORDIS_DATA", str(tmp_path / "cache"))
    done = dordis("run", *arguments, "-c", "simulation.fidelity=ideal", "-c", "federation.rounds=1", cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.startswith("dordis: ")
    assert done.stderr.count("\n") == 1

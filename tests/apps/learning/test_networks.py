"""The paper's networks: as many parameters as they should have, no running statistics, and they learn."""

import json

import numpy as np
import pytest

from dordis.apps.learning import Client, Server
from dordis.apps.learning.networks import NETWORKS, Inputs, albert, cnn, make_model, resnet18, vgg19
from dordis.errors import InputError
from dordis.rounds.app import RoundInfo, Task
from tests.apps.aggregates import summed
from tests.apps.learning import fixtures

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytestmark = pytest.mark.torch


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_networks_have_the_parameters_of_the_paper():
    """FEMNIST's CNN: Kairouz et al. 2021, section 5. ResNet-18 and VGG-19: known counts of their CIFAR variants."""
    assert count(cnn(Inputs((1, 28, 28), 62))) == 1_018_174
    with torch.device("meta"):
        assert count(resnet18(Inputs((3, 32, 32), 10))) == 11_173_962
        assert count(vgg19(Inputs((3, 32, 32), 10))) == 20_040_522


def test_normalisation_keeps_no_statistics():
    with torch.device("meta"):
        for made in (resnet18(Inputs((3, 32, 32), 10)), vgg19(Inputs((3, 32, 32), 10))):
            assert not list(made.buffers())


@pytest.mark.slow
def test_a_residual_network_takes_images_as_rows():
    module = resnet18(Inputs((3, 16, 16), 5), width=32)
    alone, both = torch.rand(1, 768), torch.rand(1, 768)
    scores = module(torch.cat([alone, both]))
    assert scores.shape == (2, 5)
    torch.testing.assert_close(module(alone), scores[:1])  # an image is normalised by itself


def test_only_images_are_taken_as_images():
    for inputs, words in ((Inputs((784,), 10), r"set shape"), (Inputs((10,), 10, tokens=50), "tokens")):
        with pytest.raises(InputError, match=words):
            cnn(inputs)
    with pytest.raises(InputError, match="8 by 8 pixels or more"):
        cnn(Inputs((1, 7, 7), 10))
    assert cnn(Inputs((9, 9), 4))(torch.rand(2, 81)).shape == (2, 4)


def learn(task, rounds, per_round):
    server = Server.from_task(task)
    before = server.evaluate()
    for index in range(rounds):
        clients = [Client.from_task(task, place) for place in range(per_round)]
        updates = [client.prepare_data(RoundInfo(index + 1, index), server.model()) for client in clients]
        server.use_output(RoundInfo(index + 1, index), summed(updates))
    return before, server.evaluate()


@pytest.mark.slow
def test_a_cnn_learns_images():
    plain = {"average": 0.0, "balance": 0.0, "optimiser": {"kind": "fedavg", "lr": 1.0}}
    how = {"lr": 0.1, "epochs": 5, "batch": 10, "limit": 100, "partition": {"kind": "iid"}}
    options = plain | how | {"model": "cnn", "options": {"dropout": [0, 0]}}
    before, after = learn(Task(options, 4), rounds=2, per_round=4)
    assert after["accuracy"] > 0.4 > 0.25 > before["accuracy"]


SMALL = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 2,
         "embedding_size": 8, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # fmt: skip


@pytest.fixture
def words(tmp_path):
    pytest.importorskip("transformers", reason="the extra 'nlp' is not installed")
    fixtures.write_reddit(tmp_path)
    plain = {"average": 0.0, "optimiser": {"kind": "fedavg", "lr": 1.0}}
    training = {"method": "adamw", "lr": 0.01, "epochs": 20}
    data = {"data": "reddit", "data_dir": str(tmp_path), "vocabulary": 40}
    return plain | training | data | {"model": "albert", "options": SMALL}


@pytest.mark.slow
def test_albert_learns_the_next_word(words):
    before, after = learn(Task(words, 3), rounds=2, per_round=3)
    assert before["perplexity"] > 20 > 4 > after["perplexity"] > 1
    assert after["loss"] == pytest.approx(np.log(after["perplexity"]))


@pytest.mark.slow
def test_albert_does_not_look_ahead(words):
    module = albert(Inputs((10,), 40, 40, "next-token"), **SMALL).eval()
    x = torch.arange(10)[None] + 4
    changed = x.clone()
    changed[:, 6:] = 30
    torch.testing.assert_close(module(x)[:, :6], module(changed)[:, :6])
    assert not torch.allclose(module(x)[:, 6:], module(changed)[:, 6:])


@pytest.mark.slow
def test_albert_begins_with_weights_from_a_folder(words, tmp_path):
    inner = albert(Inputs((10,), 40, 40, "next-token"), **SMALL).inner
    inner.save_pretrained(tmp_path / "albert")
    assert json.loads((tmp_path / "albert" / "config.json").read_text())["vocab_size"] == 40
    loaded = albert(Inputs((10,), 40, 40, "next-token", tmp_path), weights="albert")
    torch.testing.assert_close(loaded.inner.state_dict(), inner.state_dict())
    with pytest.raises(InputError, match="no ALBERT"):
        albert(Inputs((10,), 40, 40, "next-token", tmp_path), weights="nowhere")


@pytest.mark.slow
def test_albert_has_the_parameters_of_the_paper(words):
    assert count(albert(Inputs((10,), 30_000, 30_000, "next-token"))) == 15_091_680


def test_an_architecture_finds_its_folder_of_weights_again(tmp_path, monkeypatch):
    found = []

    def network(inputs, weights=""):
        found.append(inputs.folder / weights)
        return torch.nn.Linear(2, 2)

    monkeypatch.setitem(NETWORKS, "own", network)
    inputs = Inputs((2,), 2, folder=tmp_path)
    make_model("own", inputs, {"weights": "albert"}, seed=0).architecture.construct()
    assert found == [tmp_path / "albert"] * 2
    assert not make_model("own", inputs, {}, seed=0).architecture.folder

"""Counted language models: whose words are public, what clients send, what is learnt, and whole runs of them."""

import numpy as np
import pytest
from msgspec import to_builtins

from dordis.apps.learning.formats import BEGIN, END, SPECIAL, UNKNOWN, letters, read_users
from dordis.apps.text.app import Client, Server
from dordis.apps.text.model import Bigrams, PairCounts, Text, count_words, draw_users, perplexities, read_corpus
from dordis.config.reading import read_config
from dordis.errors import InputError
from dordis.records import run_records
from dordis.rounds.app import RoundInfo, Task
from dordis.simulation.run import prepare
from tests.apps.aggregates import summed
from tests.apps.text.leaf_texts import WORDS, chats, write

CLIENTS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return chats(tmp_path_factory.mktemp("chats"), users=CLIENTS + 8)


def task(folder, **options):
    return Task({"data": str(folder), "words": 2, "top": 6} | options, population=CLIENTS, seed=3)


def test_the_vocabulary_is_that_of_users_who_are_no_clients(folder):
    corpus = read_corpus(folder, 10_000, CLIENTS, 1)
    owned = {name for name in corpus.symbols.names if name.startswith("own")}
    assert len(owned) == 4  # one for each of half of those who are no clients
    assert set(WORDS) <= set(corpus.symbols.names)
    assert (len(corpus.clients), len(corpus.test)) == (CLIENTS, 4)
    assert sum(corpus.symbols.unknown(text) for text in corpus.clients) == CLIENTS
    assert sum(corpus.symbols.unknown(text) for text in corpus.test) == 4  # who do not give the vocabulary either
    assert "4 public users, who are no clients" in corpus.symbols.said
    assert "tested on 4 held-out users, who are no clients" in corpus.symbols.said


@pytest.mark.parametrize(("needs_words", "sizes"), [(True, (40, 5, 5)), (False, (40, 0, 10))])
def test_no_user_is_client_and_tested_or_gives_the_vocabulary(tmp_path, needs_words, sizes):
    everybody, only_tested = chats(tmp_path, users=CLIENTS + 8), {"v0", "v1"}
    held = dict(read_users(everybody / "test"))
    write(everybody, {"test": {**to_builtins(held), **dict.fromkeys(only_tested, to_builtins(held["u0"]))}})
    users = draw_users(everybody, CLIENTS, 1, needs_words)
    kinds = users.clients, users.vocabulary, users.test
    assert tuple(map(len, kinds)) == sizes
    names = {user for kind in kinds for user in kind}
    assert len(names) == sum(sizes)  # nobody is of two kinds
    assert not only_tested & users.clients.keys()
    train = dict(read_users(everybody / "train"))
    assert all(users.clients[user] == train[user] for user in users.clients)  # nothing of what is to test with
    spare = next(user for user in users.test if user in train)
    assert users.test[spare].x == train[spare].x + held[spare].x  # all that a held-out user wrote


def test_the_metrics_do_not_depend_on_test_texts_of_clients(folder, tmp_path):
    changed, users = tmp_path / "changed", draw_users(folder, CLIENTS, 3, True)
    test = to_builtins(dict(read_users(folder / "test")))
    for user in users.clients:
        test[user] = test[next(iter(users.test))]
    write(changed, {"train": to_builtins(dict(read_users(folder / "train"))), "test": test})
    found = [Server.from_task(task(place)).evaluate() for place in (folder, changed)]
    assert found[0] == found[1]
    del test[next(iter(users.test))]
    assert Server.from_task(task(write(tmp_path / "less", {"train": to_builtins(dict(read_users(folder / "train"))),
                                                    "test": test}))).evaluate() != found[0]  # fmt: skip


def test_a_list_of_words_may_be_given(folder, tmp_path):
    (tmp_path / "list.txt").write_text("w1\nw0\n\nw1\n")
    corpus = read_corpus(folder, tmp_path / "list.txt", CLIENTS, 1)
    assert corpus.symbols.names[len(SPECIAL) :] == ("w1", "w0")
    assert "public list list.txt" in corpus.symbols.said


def test_texts_are_pairs_of_tokens_ends_and_beginnings_among_them(tmp_path):
    said = {"x": [[["<BOS>", "a", "b"], ["c"]]], "y": [{"target_tokens": [["a", "b", "c"], ["<EOS>"]]}]}
    write(tmp_path, {"train": {"u": said, "v": said}, "test": {}})
    (text,) = read_corpus(tmp_path, 2, 1, 0).clients
    a, b = len(SPECIAL), len(SPECIAL) + 1
    assert text.before.tolist() == [BEGIN, a, b, UNKNOWN]
    assert text.following.tolist() == [a, b, UNKNOWN, END]


def test_letters_are_counted_in_whole_lines_and_tested_at_their_ends(tmp_path):
    part = {"x": ["abc", "bcd"], "y": ["d", "e"]}
    folder = write(tmp_path, {"train": {"u": part}, "test": {"u": part, "v": part}})
    corpus = read_corpus(folder, 10, 1, 0)
    a, b, c, d, e = letters().numbers("abcde")
    assert corpus.clients[0].before.tolist() == [a, b, c, b, c, d]
    assert corpus.clients[0].following.tolist() == [b, c, d, c, d, e]
    assert len(corpus.test) == 1  # u is a client
    assert (corpus.test[0].before.tolist(), corpus.test[0].following.tolist()) == ([c, d], [d, e])


def test_without_held_out_users_nothing_is_tested(tmp_path):
    part = {"u": {"x": ["abc", "bcd"], "y": ["d", "e"]}}
    write(tmp_path, {"train": part, "test": part})
    server = Server.from_task(Task({"data": str(tmp_path)}, population=1))
    assert server.evaluate() == {}
    assert "not tested: every user is a client" in server.measured


def test_what_is_missing_is_said(folder):
    with pytest.raises(InputError, match="48 users, fewer than 49"):
        read_corpus(folder, 10, 49, 0)
    with pytest.raises(InputError, match="no held-out users to take a vocabulary from"):
        read_corpus(folder, 10, 48, 0)
    with pytest.raises(InputError, match="share lies between 0 and 1"):
        Server.from_task(task(folder, share=1.0))


def test_probabilities_add_up_to_one_after_every_word():
    rng = np.random.default_rng(0)
    model = Bigrams(rng.dirichlet(np.ones(7)), np.array([1, 4, 5]), np.array([4, 5]), rng.uniform(0, 3, (3, 2)))
    for before in range(7):
        every = Text(np.full(7, before), np.arange(7))
        assert model.probabilities(every).sum() == pytest.approx(1.0)


def test_users_count_the_same_and_tokens_count_the_same():
    model = Bigrams.unigrams(np.array([0.5, 0.25, 0.25]))
    short, long = Text(np.zeros(1, int), np.array([0])), Text(np.zeros(3, int), np.array([1, 1, 2]))
    by_user, by_token = perplexities(model, [short, long])
    assert by_user == pytest.approx(2.0**1.5)
    assert by_token == pytest.approx(2.0**1.75)


def test_updates_have_norm_one_at_most_whatever_was_written(folder):
    corpus = read_corpus(folder, 10, CLIENTS, 1)
    size = corpus.symbols.size
    layout = PairCounts.from_words(np.full(size, 1 / size), corpus.symbols, 5, 0.3, 0.7)
    nothing = Text(np.zeros(0, np.int64), np.zeros(0, np.int64))
    for text in (*corpus.clients, nothing):
        assert layout.count(text).size == PairCounts.dim(corpus.symbols, 5)
        assert max(np.linalg.norm(count_words(text, size)), np.linalg.norm(layout.count(text))) <= 1 + 1e-12


def rounds(server, clients, count):
    for number in range(1, count + 1):
        info, model = RoundInfo(number, number - 1, deviation=0.05), server.model().astype(np.float32)
        server.use_output(info, summed([client.prepare_data(info, model) for client in clients]))


def test_pairs_tell_more_than_words(folder):
    server = Server.from_task(task(folder, vocabulary=12, top=15))
    clients = [Client.from_task(task(folder, vocabulary=12, top=15), place) for place in range(CLIENTS)]
    before = server.evaluate()
    rounds(server, clients, 2)
    words = server.evaluate()
    assert words["perplexity_user"] == words["unigram_perplexity_user"] < before["perplexity_user"]
    assert server.dim == max(server.dims)
    rounds(server, clients, 2)
    pairs = server.evaluate()
    assert pairs["perplexity_user"] < 0.8 * pairs["unigram_perplexity_user"]
    assert pairs["perplexity_token"] < 0.8 * pairs["unigram_perplexity_token"]
    assert 0 <= pairs["unknown"] < 0.5


def keys(folder, fidelity):
    return [
        "app.server=dordis.apps.text.app:Server",
        "app.client=dordis.apps.text.app:Client",
        f"app.options.data={folder}",
        "app.options.words=2",
        "app.options.top=4",
        "app.options.vocabulary=8",
        f"federation.clients={CLIENTS}",
        "federation.per_round=20",
        "federation.rounds=4",
        "privacy.clip=1.0",
        f"simulation.fidelity={fidelity}",
        "simulation.dropout.rate=0.1",
    ]


@pytest.mark.parametrize("fidelity", ["ideal", pytest.param("full", marks=pytest.mark.slow)])
def test_a_run_counts_words_then_pairs_and_goes_on_in_either_pass(folder, tmp_path, fidelity):
    run = prepare(read_config(keys=keys(folder, fidelity))).start(tmp_path, "")
    next(run.rounds())
    del run
    (path,) = tmp_path.glob("*/*")
    again = prepare(read_config(keys=keys(folder, fidelity))).resume(path)
    dims = again.job.app.dims
    going = again.rounds()
    next(going), next(going)
    third = prepare(read_config(keys=keys(folder, fidelity)))
    del going, again
    last = third.resume(path)
    result = last.complete()
    assert [record.dim for record in run_records.load_run(path).rounds] == [dims[0], dims[0], dims[1], dims[1]]
    assert result.epsilon <= 6
    assert {"perplexity_user", "perplexity_token", "unigram_perplexity_user"} <= result.metrics.keys()
    assert run_records.load_run(path).manifest.measured.startswith("perplexity over the 8 most frequent words")
    with np.load(path / "language.npz") as stored:
        assert stored["names"][UNKNOWN] == "<UNK>"
        np.testing.assert_allclose(stored["words"], last.job.app.result().words)

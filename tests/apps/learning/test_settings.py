"""Data sets from described tables: by file or in memory, with clients, test tables and defaults."""

import msgspec
import numpy as np
import pytest

import dordis
from dordis.apps.learning.app import Client, Server
from dordis.apps.learning.settings import (
    ADAM_RATE,
    NETWORK_RATE,
    REGRESSION_RATE,
    Settings,
    table_defaults,
    weigh_classes,
    with_default_rate,
)
from dordis.apps.learning.sources import load, read_tables
from dordis.apps.learning.task import prepare_learning
from dordis.apps.tables import Table
from dordis.errors import InputError
from dordis.rounds.app import RoundInfo, Task
from tests.apps.learning import fixtures

TABLE = Table(label="ill", client="hospital", ranges=(-4, 4), categories={"ill": (0, 1)})


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "patients.csv").write_text(fixtures.hospitals())
    (tmp_path / "public.csv").write_text(fixtures.hospitals(5))
    return Settings(data="patients.csv", table=TABLE, test="public.csv")


def test_a_table_has_a_label_and_a_column_that_names_clients(settings, tmp_path):
    data = load(settings, tmp_path)
    assert (data.x_train.shape, data.x_test.shape, data.classes) == ((720, 2), (60, 2), 2)
    assert data.describe()["whose"].startswith("60 hospitals, from the column hospital; 12 to 12")


def test_without_a_client_column_each_row_is_one_client():
    rows = {"age": [1, 2, 3], "ill": [0, 1, 0]}
    data = read_tables(rows, None, Table(label="ill", ranges={"age": (0, 9)}, categories={"ill": (0, 1)}))
    assert data.key_counts[0].size == 3
    assert data.describe()["whose"].startswith("3 rows, from the table, each row one client")


def test_rows_of_clients_are_not_tested_where_the_public_table_names_clients(settings, tmp_path):
    options = msgspec.to_builtins(settings)
    (tmp_path / "public.csv").write_text(fixtures.hospitals(65))
    server = Server.from_task(Task(options, population=60, folder=tmp_path))
    assert server.measured == (
        "test data = 60 inputs of 5 hospitals held out, no clients among them; 720 inputs of clients are left out"
    )
    assert {"accuracy", "loss", "auc", "f1", "balanced_accuracy"} == server.evaluate().keys()
    (tmp_path / "public.csv").write_text(fixtures.hospitals(5))
    server = Server.from_task(Task(options, population=60, seed=1, folder=tmp_path))
    assert "epsilon does not cover them" in server.measured
    lines = [line.split(",", 1)[1] for line in fixtures.hospitals(5).splitlines()]
    (tmp_path / "public.csv").write_text("\n".join(lines))
    server = Server.from_task(Task(options, population=60, seed=2, folder=tmp_path))
    assert (server.measured, "accuracy" in server.evaluate()) == ("", True)


def test_parquet_and_frames_are_read_as_csv_is(settings, tmp_path):
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    pytest.importorskip("pyarrow", reason="pandas needs pyarrow to write Parquet")
    frame = pandas.read_csv(tmp_path / "patients.csv")
    frame.to_parquet(tmp_path / "patients.parquet")
    same = load(settings, tmp_path)
    for source in (tmp_path / "patients.parquet", frame, frame.convert_dtypes(), {n: frame[n] for n in frame}):
        data = read_tables(source, None, TABLE)
        np.testing.assert_array_equal(data.x_train, same.x_train)
        np.testing.assert_array_equal(data.y_train, same.y_train)
        np.testing.assert_array_equal(data.keys, same.keys)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": None}, "dordis init --data patients.csv"),
        ({"table": Table(label="sick")}, "no column 'sick'"),
        ({"table": Table(label="ill", client="clinic", ranges=(0, 1))}, "no column 'clinic'"),
        ({"table": Table(label="ill", ranges=(-4, 4))}, "'hospital' have a range, but also cells that are not"),
        ({"test": "other.csv"}, "no column 'pressure'"),
        ({"test": "none.csv"}, "there is no file"),
        ({"data": "none.csv"}, "there is no file"),
        ({"data": "narrow.csv"}, "no feature columns"),
        ({"data": "numbers.npz"}, "for tables"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(settings, tmp_path, change, words):
    (tmp_path / "other.csv").write_text("hospital,age,ill\na,1,0\n")
    (tmp_path / "narrow.csv").write_text("hospital,ill\na,1\n")
    with pytest.raises(InputError, match=words):
        load(msgspec.structs.replace(settings, **change), tmp_path)


def test_defaults_fall_with_the_width_and_leave_given_settings_alone(settings, tmp_path):
    encoder = load(settings, tmp_path).encoder
    chosen = table_defaults(Settings(lr=0.5), {"lr"}, encoder, Task({}, 1000), "softmax")
    assert (chosen.lr, chosen.epochs, chosen.balance) == (0.5, 1, 0.0)
    assert chosen.optimiser.lr == pytest.approx(10 / np.sqrt(3))
    assert table_defaults(Settings(), {}, encoder, Task({}, 60), "softmax").optimiser.lr == pytest.approx(
        3 / np.sqrt(3)
    )


def test_class_weights_move_the_decision_as_a_weighted_loss_does(settings, tmp_path):
    encoder = load(settings, tmp_path).encoder
    weighed = weigh_classes(Settings(class_weights={"1": 4.0}), encoder, 2)
    assert weighed.class_offset == pytest.approx((0.0, -np.log(4.0)))
    with pytest.raises(InputError, match="class_weights name 2"):
        weigh_classes(Settings(class_weights={"2": 4.0}), encoder, 2)


OWN = {
    "data": "mine.csv",
    "own_files": True,
    "table": {
        "label": "ill",
        "client": "hospital",
        "features": ["pressure", "age"],
        "ranges": [-4, 4],
        "categories": {"ill": [0, 1]},
    },
}


def test_each_deployed_client_trains_on_all_rows_of_its_own_file_and_the_server_needs_none(tmp_path):
    server = Server.from_task(Task(OWN, population=4, folder=tmp_path))
    assert server.unit == "clients = 4 hospitals, each with its own file"
    lines = fixtures.hospitals(4, rows=75).splitlines()
    seen = []
    for place in range(4):
        folder = tmp_path / str(place)
        folder.mkdir()
        own = lines[1 + 75 * place : 1 + 75 * (place + 1)]
        (folder / "mine.csv").write_text("\n".join([lines[0], *own, ""]))
        client = Client.from_task(Task(OWN, population=4, folder=folder), place)
        work = client.work(RoundInfo(1, 0))
        assert len(work.samples[1]) == 75
        seen += [tuple(row) for row in work.samples[0].tolist()]
        assert client.prepare_data(RoundInfo(1, 0, clip=1.0), server.model()).shape == (server.dim,)
    whole = [[float(cell) / 4 for cell in line.split(",")[1:3]] for line in lines[1:]]
    np.testing.assert_allclose(sorted(seen), sorted(map(tuple, whole)))


def test_a_client_without_its_file_and_a_description_without_features_are_refused(tmp_path):
    with pytest.raises(InputError, match="give this client's own file with --data"):
        Client.from_task(Task(OWN, population=4, folder=tmp_path), 0)
    without = OWN | {"table": {"label": "ill", "ranges": [-4, 4], "categories": {"ill": [0, 1]}}}
    with pytest.raises(InputError, match="needs its feature columns"):
        Server.from_task(Task(without, population=4, folder=tmp_path))


@pytest.mark.parametrize(
    ("settings", "model", "rate"),
    [
        (Settings(), "softmax", 4.0),
        (Settings(), "mlp", NETWORK_RATE),
        (Settings(target="regression"), "linear", REGRESSION_RATE),
        (Settings(target="regression"), "mlp", REGRESSION_RATE),
        (Settings(target="regression", method="adamw"), "mlp", ADAM_RATE),
        (Settings(), object(), NETWORK_RATE),  # a user's model
        (Settings(method="adamw"), "softmax", ADAM_RATE),
        (Settings(method="adamw"), "mlp", ADAM_RATE),
    ],
)
def test_the_default_learning_rate_depends_on_the_model(settings, model, rate):
    assert with_default_rate(settings, {}, model).lr == rate
    assert with_default_rate(settings, {"lr"}, model).lr == 4.0


def test_a_network_learns_with_the_defaults(tmp_path):
    """At the rate for softmax its accuracy is that of a guess, about 0.1."""
    data = prepare_learning(Settings(model="mlp"), Task({}, 60))
    clients = [data.samples(place) for place in range(60)]
    done = dordis.train("mlp", clients, test=data.test, epsilon=None, rounds=10, fidelity="ideal", output=tmp_path)
    assert done.metrics["accuracy"] > 0.7


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_numbers_are_learnt_at_the_default_rate(model, tmp_path):
    rng = np.random.default_rng(0)
    held = [(x, x @ [1.0, 2.0, 3.0, 4.0]) for x in rng.normal(size=(10, 20, 4))]
    result = dordis.train(
        model, held, test=held[0], target="regression", epsilon=None, rounds=20, fidelity="ideal", output=tmp_path
    )
    assert result.metrics["rmse"] < 1.5  # guessing the mean gives 5.5


@pytest.mark.parametrize(
    "setting", [{"features": "scattering"}, {"own_files": True}, {"shape": (1,)}, {"data_dir": "x"}]
)
def test_a_setting_without_effect_on_a_table_is_refused(setting, tmp_path):
    rows = {"age": [1, 2, 3], "ill": [0, 1, 0]}
    table = Table(label="ill", ranges={"age": (0, 9)}, categories={"ill": (0, 1)})
    with pytest.raises(InputError, match=f"{next(iter(setting))} has no effect on a table"):
        dordis.train("softmax", rows, table=table, epsilon=None, output=tmp_path, **setting)

"""Feature maps by name; the maps of the scattering transform are those of kymatio, an independent implementation."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dordis.apps.learning import features
from dordis.apps.learning.app import Server
from dordis.apps.learning.features import (
    LENGTH,
    Scattering,
    Whitening,
    _colour,
    _whitening_grey,
    dead_leaves,
    pool_maps,
    scatter_images,
    strokes,
    with_features,
)
from dordis.apps.learning.partitioned_data import Dataset
from dordis.errors import InputError
from dordis.rounds.app import Task

kymatio = pytest.importorskip("kymatio.scattering2d.frontend.numpy_frontend", reason="needs kymatio, of the extra dev")


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("order", [1, 2])
def test_the_maps_are_those_of_kymatio(size: int, order: int) -> None:
    images = np.random.default_rng(size).random((5, size, size)).astype(np.float32)
    theirs = kymatio.ScatteringNumPy2D(J=2, shape=(size, size), L=8, max_order=order)(images)
    ours = Scattering(size, order)
    assert theirs.shape[1] == sum(ours.orders)
    np.testing.assert_allclose(ours.maps(images), theirs, atol=2e-6)


def test_other_shapes_and_orders_are_refused() -> None:
    with pytest.raises(InputError, match="of order 1 or 2"):
        Scattering(28, 3)
    with pytest.raises(InputError, match="not \\(count, 28, 28\\)"):
        Scattering(28).maps(np.zeros((2, 32, 32), np.float32))


@pytest.fixture(autouse=True, scope="module")
def few_drawn() -> Iterator[None]:
    """Take the statistics of fewer images than the package does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "DRAWN", 40)
        _whitening_grey.cache_clear()
        yield
    _whitening_grey.cache_clear()


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(5).random((6, 28, 28))


def test_a_row_depends_on_its_own_image_alone(images: np.ndarray) -> None:
    alone = scatter_images(images[2:3])
    np.testing.assert_allclose(scatter_images(images)[2:3], alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(alone, axis=1), LENGTH, rtol=1e-5)


def test_an_image_and_its_mirror_image_have_the_same_features() -> None:
    colour = np.random.default_rng(6).random((2, 3, 32, 32)).astype(np.float32)
    found = _colour(colour)
    assert found.shape == (2, (81 + 17 + 17) * 16)
    np.testing.assert_allclose(found, _colour(colour[..., ::-1]), atol=1e-4)


def test_whitening_is_the_inverse_root_of_the_covariance_and_a_ridge() -> None:
    rng = np.random.default_rng(7)
    features = (rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6)) + 3).astype(np.float32)
    covariance = np.cov(features, rowvar=False)
    whitening = Whitening.from_features(features, ridge=0.3)
    np.testing.assert_allclose(whitening.centre, features.mean(0), rtol=1e-5)
    ridged = covariance + 0.3 * np.trace(covariance) / 6 * np.eye(6)
    np.testing.assert_allclose(whitening.matrix @ ridged @ whitening.matrix, np.eye(6), atol=1e-3)


def test_pooling_averages_cells_that_may_overlap() -> None:
    maps = np.arange(49, dtype=np.float32).reshape(1, 1, 7, 7)
    found = pool_maps(maps, 3)[0, 0]
    assert found[0, 0] == pytest.approx(maps[0, 0, 0:3, 0:3].mean())
    assert found[1, 2] == pytest.approx(maps[0, 0, 2:5, 4:7].mean())


def test_drawn_images_are_images_and_follow_from_the_seed() -> None:
    for draw, shape in ((strokes, (3, 28, 28)), (dead_leaves, (3, 3, 28, 28))):
        drawn = draw(3, 28, 1)
        assert drawn.shape == shape
        assert drawn.min() >= 0
        assert 0.5 < drawn.max() <= 1
        np.testing.assert_array_equal(drawn, draw(3, 28, 1))
        assert (drawn != draw(3, 28, 2)).any()


def doubled(inputs: np.ndarray) -> np.ndarray:
    return np.concatenate([inputs, inputs], axis=-1).reshape(len(inputs), -1)


def flawed(inputs: np.ndarray) -> np.ndarray:
    return inputs[:-1]


def test_a_function_of_ones_own_is_named(tmp_path: Path) -> None:
    data = Dataset(np.ones((4, 3)), np.arange(4), np.ones((2, 3)), np.zeros(2, int))
    found = with_features(data, f"{__name__}:doubled", tmp_path)
    assert (found.features, found.x_test.shape) == (6, (2, 6))
    with pytest.raises(InputError, match="one row of finite numbers"):
        with_features(data, f"{__name__}:flawed", tmp_path)
    with pytest.raises(InputError, match="there are no features 'wavelets'"):
        with_features(data, "wavelets", tmp_path)


def test_features_of_many_inputs_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "WORTH_KEEPING", 4)
    x = np.random.default_rng(8).integers(0, 256, (4, 784)).astype(np.uint8)
    data = Dataset(x, np.arange(4), shape=(28, 28), scale=255.0)
    found = with_features(data, "scattering", tmp_path)
    assert found.features == 729
    monkeypatch.setitem(features.MAPS, "scattering", f"{__name__}:flawed")
    np.testing.assert_array_equal(with_features(data, "scattering", tmp_path).x_train, found.x_train)
    with pytest.raises(InputError):
        with_features(Dataset(x + 1, np.arange(4), shape=(28, 28), scale=255.0), "scattering", tmp_path)


def test_they_are_a_setting_of_the_application() -> None:
    options = {"features": f"{__name__}:doubled", "centred": False}
    assert Server.from_task(Task(options, population=100)).dim == 10 * (2 * 64 + 1)


@pytest.mark.parametrize("own_files", [False, True])
def test_they_are_refused_with_a_table_because_predictions_would_lack_them(own_files: bool) -> None:
    table = {"label": "ill", "ranges": (0, 1), "categories": {"ill": ("no", "yes")}}
    options = {"data": "rows.csv", "table": table, "own_files": own_files, "features": f"{__name__}:doubled"}
    with pytest.raises(InputError, match="not the rows of a table"):
        Server.from_task(Task(options, population=100))

"""Objects that a configuration names: found, or refused with the reason and what to do."""

import pytest

from dordis.errors import InputError, MissingExtra
from dordis.loading import load_class, load_object

WHAT = "app.use"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Return a function that writes a module and makes it importable."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_an_object_of_its_kind_is_returned(write):
    assert load_object(f"{write('loading_good', 'ANSWER = 42')}:ANSWER", WHAT, int) == 42


@pytest.mark.parametrize("text", ["", "os", ":x", "os:", "os.path"])
def test_a_name_of_another_form_is_refused(text):
    with pytest.raises(InputError, match=r"app.use is named as package\.module:NAME"):
        load_object(text, WHAT, int)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("loading_text", "ANSWER = 'text'", "is no int"),
        ("loading_other", "OTHER = 1", "has no 'ANSWER'"),
        ("loading_import", "import nothing_of_this_name", "imports 'nothing_of_this_name', which is not installed"),
        ("loading_syntax", "def (", "is not Python"),
    ],
)
def test_a_module_without_the_object_is_refused_with_the_reason(write, name, text, reason):
    with pytest.raises(InputError, match=reason):
        load_object(f"{write(name, text)}:ANSWER", WHAT, int)


def test_a_module_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="there is no module 'nothing_of_this_name'"):
        load_object("nothing_of_this_name:X", WHAT, int)


def test_a_module_that_needs_torch_names_the_extra(write):
    name = write("loading_torch", "raise ModuleNotFoundError('no torch', name='torch')")
    with pytest.raises(MissingExtra, match="torch"):
        load_object(f"{name}:X", WHAT, int)


def test_a_class_is_a_subclass_of_its_kind():
    assert load_class("dordis.errors:InputError", ValueError, WHAT) is InputError
    with pytest.raises(InputError, match="names a subclass of KeyError"):
        load_class("dordis.errors:InputError", KeyError, WHAT)

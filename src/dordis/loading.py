"""Load objects that a configuration names as `package.module:NAME`, so that users can supply their own classes."""

from importlib import import_module
from typing import TypeVar

from dordis.errors import InputError, MissingExtra

Kind = TypeVar("Kind")


def load_object(text: str, what: str, kind: type[Kind]) -> Kind:
    """Import and return the object that `text` names; raise InputError if this fails or the object is no `kind`.

    `what` is the subject of the error message, such as "the features".

    >>> load_object("dordis.errors:InputError", "the error", type).__name__
    'InputError'
    """
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise InputError(f"{what} is named as package.module:NAME, not as '{text}'")
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise MissingExtra("torch") from None
        if error.name is not None and module != error.name and not module.startswith(f"{error.name}."):
            raise InputError(f"{what}: '{module}' imports '{error.name}', which is not installed: install it") from None
        raise InputError(f"{what}: there is no module '{error.name}'; run from the folder it is in") from None
    except SyntaxError as error:
        raise InputError(f"{what}: {error.filename}, line {error.lineno}, is not Python: {error.msg}") from None
    if not hasattr(home, name):
        raise InputError(f"{what}: the module '{module}' has no '{name}'")
    thing = getattr(home, name)
    if not isinstance(thing, kind):
        raise InputError(f"{what}: '{text}' is no {kind.__name__}")
    return thing


def load_class(text: str, kind: type[Kind], what: str) -> type[Kind]:
    """Import and return the class that `text` names; raise InputError if it is no subclass of `kind`.

    `what` is the subject of the error message.
    """
    given = load_object(text, what, type)
    if not issubclass(given, kind):
        raise InputError(f"{what} names a subclass of {kind.__name__}, and '{text}' is none")
    return given

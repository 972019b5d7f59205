"""The same arithmetic on every machine, and where no doctests are looked for: modules of extras that are absent."""

from importlib.util import find_spec

from tests import same_arithmetic as same_arithmetic

collect_ignore_glob = [
    pattern
    for module, patterns in {
        "flwr": ["src/dordis/integrations/flower/*", "tests/integrations/flower/apps.py"],
        "ray": ["src/dordis/integrations/ray.py"],
    }.items()
    if find_spec(module) is None
    for pattern in patterns
]

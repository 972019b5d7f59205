"""Where no doctests are looked for: modules of extras that are not installed cannot be imported."""

from importlib.util import find_spec

collect_ignore_glob = [
    pattern
    for module, patterns in {
        "flwr": ["src/dordis/integrations/flower/*", "tests/integrations/flower/apps.py"],
        "ray": ["src/dordis/integrations/ray.py"],
    }.items()
    if find_spec(module) is None
    for pattern in patterns
]

"""The configuration: presets, files and keys, and one clear line for every mistake."""

import msgspec
import pytest

from dordis.apps.learning import Settings as Learning
from dordis.config import read_presets
from dordis.config.reading import config_to_toml, merge_settings, parse_assignment, read_alerts, read_config
from dordis.config.schema import Config
from dordis.errors import InputError
from dordis.privacy.noise_strategies import Conservative, Orig, XNoise


def file_with(tmp_path, text):
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_default():
    assert read_config() == Config()


def test_keys_override_the_file_and_the_file_the_preset(tmp_path):
    path = file_with(tmp_path, "[federation]\nrounds = 7\nclients = 30\n")
    config = read_config(path, "quick", ["federation.clients=60"])
    assert (config.federation.rounds, config.federation.clients) == (7, 60)
    assert config.federation.per_round == read_config(None, "quick").federation.per_round


def test_a_run_without_a_name_has_that_of_its_preset_or_else_of_its_file(tmp_path):
    path = tmp_path / "my hospitals.toml"
    path.write_text("[federation]\nrounds = 7\n")
    assert (read_config(path).name, read_config(path, "quick").name) == ("my-hospitals", "quick")
    assert read_config(path, None, ["name=chosen"]).name == "chosen"
    path.write_text('name = "own"\n')
    assert read_config(path).name == "own"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=3", 3),
        ("a.b=0.5", 0.5),
        ("a.b=true", True),
        ("a.b=orig", "orig"),
        ("a.b='3'", "3"),
        ("a.b=[1, 2]", [1, 2]),
    ],
)
def test_a_value_is_toml_or_text(text, value):
    assert parse_assignment(text) == {"a": {"b": value}}


def test_strategies_are_named_by_their_kind():
    assert read_config(keys=["privacy.noise.kind=orig"]).privacy.noise == Orig()
    assert read_config(keys=["privacy.noise.kind=xnoise", "privacy.noise.scheme=exact"]).privacy.noise == XNoise(
        "exact"
    )
    assert read_config(
        keys=["privacy.noise.kind=conservative", "privacy.noise.rate=0.5"]
    ).privacy.noise == Conservative(0.5)


def test_another_kind_of_strategy_takes_no_settings_over():
    below = {"noise": {"kind": "conservative", "rate": 0.5}}
    assert merge_settings(below, {"noise": {"kind": "orig"}}) == {"noise": {"kind": "orig"}}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["privacy.epsilom=3"], "did you mean 'epsilon'"),
        (["nothing=3"], "there is no setting 'nothing'"),
        (["privacy.epsilon=-1"], "privacy.epsilon"),
        (["privacy.noise.kind=loud"], "privacy.noise"),
        (["federation.rounds=many"], "federation.rounds"),
        (["simulation.dropout.kind=rate", "simulation.dropout.size=3"], "simulation.dropout"),
        (["no equals sign"], "section.key=value"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(keys, said):
    with pytest.raises(InputError, match=said) as caught:
        read_config(keys=keys)
    assert "\n" not in str(caught.value)


def test_a_missing_file_bad_toml_and_an_unknown_preset_are_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        read_config(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="is not TOML"):
        read_config(file_with(tmp_path, "a = = 3"))
    with pytest.raises(InputError, match=r"there are .*quick"):
        read_config(preset="fast")


def test_every_preset_is_a_configuration():
    assert "quick" in read_presets()
    for name in read_presets():
        assert read_config(preset=name).name


def test_a_configuration_is_written_as_toml_that_reads_back(tmp_path):
    config = read_config(keys=["privacy.noise.kind=conservative", "privacy.bits=20", "app.options.epochs=3"])
    again = read_config(file_with(tmp_path, config_to_toml(config)))
    assert again == config
    assert msgspec.to_builtins(again) == msgspec.to_builtins(config)


def test_the_commented_preset_is_the_default():
    config = read_config(preset="digits")
    assert msgspec.convert(config.app.options, Learning) == Learning()
    app = msgspec.structs.replace(config.app, options={})
    deployment = msgspec.structs.replace(config.deployment, train_seconds=None)  # which owners agree on
    assert msgspec.structs.replace(config, app=app, deployment=deployment) == Config()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("protocol.mode=evil", "malicious, semi-honest"),
        ("privacy.noise.kind=loud", "xnoise, orig, early"),
        ("privacy.noise.scheme=loud", "exact, single"),
        ("performance.chunks=few", "auto, a whole number of at least 1$"),
        ("privacy.projection=few", "adaptive, auto, off, a whole number of at least 1$"),
        ("simulation.dropout.kind=loud", "none, rate, stages, fedscale, matrix"),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_those_that_are(key, words):
    with pytest.raises(InputError, match=f"it is one of {words}"):
        read_config(keys=[key])


def test_paths_in_a_file_are_relative_to_it(tmp_path):
    text = '[app.options]\ndata = "mine.csv"\n[simulation.dropout]\nkind = "fedscale"\npath = "trace.json"\n'
    config = read_config(file_with(tmp_path, text))
    assert config.app.folder == str(tmp_path)
    assert config.simulation.dropout.path == str(tmp_path / "trace.json")
    again = tmp_path / "elsewhere"
    again.mkdir()
    assert read_config(file_with(again, config_to_toml(config))) == config
    assert read_config().app.folder == ""


def test_an_option_of_the_application_can_be_set_without_its_kind():
    options = read_config(keys=["app.options.partition.alpha=0.1"]).app.options
    assert options == {"partition": {"kind": "lda", "alpha": 0.1}}
    assert read_config(keys=["app.options.partition.kind=iid"]).app.options == {"partition": {"kind": "iid"}}
    own = read_config(keys=["app.server=mine:Server", "app.options.partition.alpha=0.1"]).app.options
    assert own == {"partition": {"alpha": 0.1}}


def test_alerts_are_checked_and_no_part_of_the_configuration(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[alerts]\ncommand = "page-me"\n')
    assert read_alerts(path).command == "page-me"
    assert read_alerts(path, ["alerts.command=mail"]).command == "mail"
    assert read_alerts().command == ""
    assert "page-me" not in config_to_toml(read_config(path))
    path.write_text('[alerts]\ncomand = "page-me"\n')
    with pytest.raises(InputError, match=r"alerts\.comand"):
        read_config(path)

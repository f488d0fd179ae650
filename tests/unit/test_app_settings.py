"""Settings: which source wins, and what is refused by name."""

from dataclasses import fields
from pathlib import Path

import pytest

from app.settings import TYPES, Settings, load_settings
from models.errors import UsageError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_every_setting_has_a_type():
    assert list(TYPES) == [field.name for field in fields(Settings)]


def test_flag_before_environment_before_file_before_default(file: Path):
    file.write_text('temperature = 0.1\ntop_k = 1\nmodel = "file"\nstop = ["a", "b"]\ndraft = false')
    environ = {"DART_TEMPERATURE": "0.2", "DART_TOP_K": "2", "DART_HOME": "/elsewhere"}
    settings = load_settings({"temperature": 0.3, "top_k": None}, environ, file)
    assert (settings.temperature, settings.top_k, settings.model) == (0.3, 2, "file")
    assert (settings.stop, settings.draft, settings.tree_size) == (("a", "b"), False, 16)


def test_a_flag_that_says_the_default_still_wins(file: Path):
    file.write_text("draft = false\nseed = 5")
    settings = load_settings({"draft": True, "seed": 0}, {}, file)
    assert (settings.draft, settings.seed) == (True, 0)


def test_without_a_file_there_are_defaults(file: Path):
    assert load_settings({}, {}, file) == Settings()


def test_settings_become_the_engines_options(file: Path):
    file.write_text('model = "fake:"\ncontext = 99\nthreads = 2\ntemperature = 1\nstop = ["x"]\nshow_tree = true')
    settings = load_settings({}, {}, file)
    engine, generate = settings.engine_options(), settings.generate_options()
    assert (engine.model, engine.context, engine.threads) == ("fake:", 99, 2)
    assert (generate.temperature, generate.stop, generate.show_tree) == (1.0, ("x",), True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("temprature = 1", ["temprature", "temperature"]),
        ('temperature = "hot"', ["temperature", "'hot'"]),
        ("temperature = true", ["temperature", "True"]),
        ("temperature = -1", ["temperature", "-1"]),
        ("top_k = 1.5", ["top_k", "1.5"]),
        ("draft = 1", ["draft", "true or false"]),
        ('stop = "text"', ["stop", "list"]),
        ("stop = [1]", ["stop", "list"]),
        ('stop = [""]', ["stop", "empty"]),
        ("tree_size = 5", ["tree_size", "16"]),
        ("threads = 0", ["threads", "0"]),
        ("context = 1", ["context", "1"]),
        ("[model]\nname = 1", ["model", "text"]),
        ("model = \nseed = 1", ["line 1"]),
    ],
)
def test_the_file_is_refused_by_name(file: Path, text: str, words: list[str]):
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        load_settings({}, {}, file)
    said = f"{error.value.cause} {error.value.hint}"
    assert all(word in said for word in [str(file), *words]), said


@pytest.mark.parametrize(
    ("name", "value"),
    [("DART_TOP_K", "many"), ("DART_DRAFT", "maybe"), ("DART_TEMPERATURE", "nan"), ("DART_SEED", "-1")],
)
def test_a_wrong_environment_variable_is_refused_by_name(file: Path, name: str, value: str):
    with pytest.raises(UsageError, match=name):
        load_settings({}, {name: value}, file)


@pytest.mark.parametrize(("text", "value"), [("on", True), ("0", False), ("False", False), ("YES", True)])
def test_switches_in_the_environment(file: Path, text: str, value: bool):
    assert load_settings({}, {"DART_SHOW_TREE": text}, file).show_tree is value


def test_a_wrong_flag_is_refused_by_name(file: Path):
    with pytest.raises(UsageError, match="--top-p"):
        load_settings({"top_p": 1.5}, {}, file)

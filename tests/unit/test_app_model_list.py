"""Models found on this machine."""

import json
from pathlib import Path

import pytest

from app.model_list import fit, local_models


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DART_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


def put_model(folder: Path, size: int, **config: object) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(size))


def test_the_default_is_always_there(machine: Path):
    (model,) = local_models()
    assert (model.spec, model.kind) == ("default", "fetched at first use")
    (machine / "cache" / "models" / "small").mkdir(parents=True)
    (machine / "cache" / "models" / "small" / "a.gguf").touch()
    assert local_models()[0].kind == "here"


def test_the_hubs_cache_is_listed_with_the_memory_it_needs(machine: Path):
    hub = machine / "hub"
    put_model(hub / "models--Qwen--Qwen3-4B" / "snapshots" / "abc", 16_000, model_type="qwen3")
    put_model(hub / "models--org--small--bnb" / "snapshots" / "abc", 4_000, model_type="llama", quantization_config={})
    (hub / "models--org--empty" / "snapshots").mkdir(parents=True)
    found = local_models()[1:]
    assert [(model.spec, model.kind, model.memory) for model in found] == [
        ("Qwen/Qwen3-4B", "qwen3", 4_500),
        ("org/small--bnb", "llama", 4_000),
    ]


def test_files_are_found_below_here_and_below_models(machine: Path):
    (machine / "models" / "deep").mkdir(parents=True)
    (machine / "models" / "deep" / "one.gguf").write_bytes(bytes(10))
    (machine / "work" / "two.gguf").touch()
    (machine / "work" / ".hidden").mkdir()
    (machine / "work" / ".hidden" / "three.gguf").touch()
    (machine / "work" / "link.gguf").symlink_to("two.gguf")
    put_model(machine / "work" / "four", 160, model_type="llama")
    (machine / "work" / "broken").mkdir()
    (machine / "work" / "broken" / "config.json").write_text("{")
    (machine / "work" / "broken" / "model.safetensors").touch()
    found = {Path(model.spec).name: model for model in local_models()[1:]}
    assert set(found) == {"one.gguf", "link.gguf", "four", "broken"}
    assert found["one.gguf"].memory == 10
    assert found["broken"].kind == "cannot be read"


def test_what_fits():
    assert fit(98_000_000, 8_000_000_000) == "0.1 GB"
    assert fit(1_000_000, None) == "1 MB"
    assert fit(9_800_000_000, 7_100_000_000) == "9.8 GB, 7.1 GB free: does not fit"
    assert fit(0, 1) == ""

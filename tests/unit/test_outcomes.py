"""What a person gets when things go wrong: a clear sentence, what to type next, and the documented exit code."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import tiny_model

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llama", tmp_path_factory.mktemp("model") / "tiny")


def stream(*arguments: str, stdin: str = "", timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dart_core.stream", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, cwd=ROOT, check=False)


def expect(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_text_goes_to_stdout_and_figures_to_stderr(model: Path) -> None:
    done = stream("--model", str(model), "--max-new-tokens", "5", "hello")
    assert done.returncode == 0
    assert done.stdout.endswith("\n")
    assert "tok/s" in done.stderr
    both = stream("--model", str(model), "--max-new-tokens", "5", "--json", "hello", stdin="and this")
    assert '"type": "finished"' in both.stdout


def test_a_missing_model(tmp_path: Path) -> None:
    expect(stream("--model", str(tmp_path / "none"), "hi"), 3, "no model at", "try:")
    expect(stream("--model", "nobody/nothing", "hi"), 3, "hf download nobody/nothing")


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    expect(stream("--model", str(tmp_path), "hi"), 3, "config.json")


def test_a_model_of_another_kind(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    (other / "config.json").write_text('{"model_type": "gpt2"}')
    expect(stream("--model", str(other), "hi"), 3, "gpt2", "Llama, Mistral, Qwen2, Qwen3")


def test_a_truncated_gguf(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(range(60)))
    expect(stream("--model", str(tmp_path / "cut.gguf"), "hi"), 3, "cut.gguf", "try:")


def test_weights_of_a_wrong_shape(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    tensors[name] = torch.zeros(64, 90)
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    expect(stream("--model", str(other), "hi"), 3, name, "[64, 90]", "[64, 96]")


def test_a_tensor_that_is_not_there(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    expect(stream("--model", str(other), "hi"), 3, "model.norm.weight")


def test_weights_cut_short(model: Path, tmp_path: Path) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    whole = (other / "model.safetensors").read_bytes()
    (other / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    expect(stream("--model", str(other), "hi"), 3, "model.safetensors")


def test_prompts_that_cannot_be_answered(model: Path) -> None:
    expect(stream("--model", str(model)), 2, "empty")
    expect(stream("--model", str(model), "--context", "64", "long " * 100), 2, "tokens long", "64")


def test_options_out_of_range(model: Path) -> None:
    expect(stream("--temperature", "-1", "hi"), 2, "temperature")
    expect(stream("--tree-size", "5", "hi"), 2, "tree-size")
    expect(stream("--context", "100000", "--model", str(model), "hi"), 2, "512")
    expect(stream("--show-tree", "hi"), 2, "--json")
    expect(stream("--model", str(model), "--head", "/nowhere/at/all", "hi"), 3, "/nowhere/at/all")


def hear_interrupts() -> None:
    """A test run in the background has SIGINT ignored, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running() -> subprocess.Popen[str]:
    """A slow reply that has begun."""
    command = [sys.executable, "-m", "dart_core.stream", "--model", "fake:?rate=30", "hello"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, preexec_fn=hear_interrupts
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    return process


def test_control_c_says_130_without_a_traceback() -> None:
    process = running()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_a_closed_pipe_is_quiet() -> None:
    process = running()
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_killed_process_leaves_nothing_that_stops_the_next(model: Path) -> None:
    process = running()
    process.kill()
    process.wait(timeout=10)
    assert stream("--model", str(model), "--max-new-tokens", "3", "hi").returncode == 0

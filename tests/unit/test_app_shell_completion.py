"""Completions for shells."""

import shutil
import subprocess

import pytest

from app import cli
from app.shell_completion import script


def test_bash_completes_options_and_falls_back_on_files(capsys: pytest.CaptureFixture[str]):
    assert cli.run(["--completion", "bash"]) == 0
    text = capsys.readouterr().out
    spec = text.removeprefix("complete ").removesuffix(" dart-chat\n")
    command = ["bash", "-ec", f"{text}\ncomplete -p dart-chat\ncompgen {spec} -- --te"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "-o default" in done.stdout
    assert done.stdout.splitlines()[-1] == "--temperature"


def test_every_option_is_there_for_every_shell():
    parser = cli.build_parser()
    for shell in ("bash", "zsh"):
        for action in parser._actions:
            assert all(name in script(parser, shell) for name in action.option_strings)
    fish = script(parser, "fish").splitlines()
    assert "complete -c dart-chat -s c -l continue -d 'go on with the last chat; with a prompt," in "\n".join(fish)
    assert any("-l draft -x -a 'on off'" in line for line in fish)
    assert any("-l model -r -d" in line for line in fish)
    assert all("-l version -d" in line for line in fish if "-l version" in line)


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_takes_it():
    subprocess.run(["fish", "-n"], input=script(cli.build_parser(), "fish"), text=True, check=True)

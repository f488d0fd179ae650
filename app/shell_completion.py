"""What a shell completes after `dart-chat`, made from the command line's own parser."""

import argparse
import shlex

SHELLS = ("bash", "zsh", "fish")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Text for the shell's start file: `eval "$(dart-chat --completion bash)"`; fish: `… fish | source`."""
    options = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
    if shell == "fish":
        return "\n".join(fish_line(parser.prog, action) for action in options) + "\n"
    words = " ".join(name for action in options for name in action.option_strings)
    begin = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n" if shell == "zsh" else ""
    return f"{begin}complete -o default -W {shlex.quote(words)} {parser.prog}\n"


def fish_line(prog: str, action: argparse.Action) -> str:
    """One option, its choices or the need for a value, and what it does."""
    parts = ["complete", "-c", prog]
    for name in action.option_strings:
        parts += ["-l", name[2:]] if name.startswith("--") else ["-s", name[1:]]
    if action.choices:
        parts += ["-x", "-a", shlex.quote(" ".join(map(str, action.choices)))]
    elif action.nargs != 0:
        parts.append("-r")
    if action.help:
        text = action.help.replace("\\", "\\\\").replace("'", "\\'")
        parts += ["-d", f"'{text}'"]
    return " ".join(parts)

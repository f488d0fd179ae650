"""The themes a person may choose: dark and light, the terminal's own colours, and one of high contrast."""

from textual.theme import Theme

DEFAULT_THEME = "textual-dark"
SHORT_NAMES = {
    "dark": "textual-dark",
    "light": "textual-light",
    "ansi": "ansi-dark",
    "contrast": "high-contrast",
}

HIGH_CONTRAST = Theme(
    name="high-contrast",
    primary="#ffffff",
    secondary="#ffff00",
    accent="#ffff00",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#101010",
    success="#00ff00",
    warning="#ffff00",
    error="#ff6060",
    dark=True,
)


def theme_name(asked: str) -> str:
    """A theme's full name from what was typed: dark, light, ansi, contrast, or any of Textual's own."""
    return SHORT_NAMES.get(asked, asked) or DEFAULT_THEME

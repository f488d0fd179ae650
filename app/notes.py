"""What is said below a reply once it has ended: how, and its figures. Kept with the message as JSON."""

import json
from dataclasses import asdict
from typing import Any

from app.store import Message
from dart_core.events import Failed, Finished
from dart_core.options import GenerateOptions

ENDINGS = {
    "length": "stopped at the limit of new tokens",
    "context": "stopped: the context is full",
    "cancelled": "stopped",
}


def stats_json(end: Finished | Failed, options: GenerateOptions, dropped: int = 0) -> str:
    """What `Message.stats_json` holds: the last event's fields, the options, the messages that were left out."""
    return json.dumps({**asdict(end), "dropped": dropped, "options": asdict(options)})


def stats(message: Message) -> dict[str, Any]:
    """What `stats_json` wrote; empty where there is none or an imported chat holds something else."""
    try:
        value = json.loads(message.stats_json or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def figures(kept: dict[str, Any]) -> str:
    """Such as "212 tokens, 45 drafted, 331 tok/s, τ 1.27"; empty where nothing was measured."""
    try:
        usage, speed = kept["usage"], kept["timings"]["predicted_per_second"]
        written, steps = usage["completion_tokens"], usage["steps"]
        line = f"{written} tokens, {usage['accepted_tokens']} drafted, {speed:.0f} tok/s"
        return line + (f", τ {written / steps:.2f}" if steps else "") if written else ""
    except (KeyError, TypeError, ValueError):
        return ""


def note(message: Message) -> str:
    """The lines below a reply, empty while it is being written."""
    kept = stats(message)
    lines = []
    if message.state == "failed":
        lines.append(str(kept.get("error") or "not written"))
        if kept.get("hint"):
            lines.append(f"Try: {kept['hint']}")
    elif message.state == "stopped":
        lines.append("stopped")
    elif ending := ENDINGS.get(str(kept.get("reason"))):
        lines.append(ending)
    if message.state != "streaming" and (measured := figures(kept)):
        lines = [" · ".join([*lines, measured])]
    if dropped := kept.get("dropped"):
        lines.append(f"the {dropped} oldest messages did not fit the context")
    return "\n".join(lines)

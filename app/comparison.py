"""The same reply with drafting on and off: both figures, and whether the texts are equal, as they must be."""

from dataclasses import replace

from app.notes import figures, stats
from app.store import Message, Store
from dart_core.options import GenerateOptions
from models.errors import UsageError


def other_way(reply: Message) -> GenerateOptions:
    """The options a reply was written with, drafting switched. Raises UsageError for one that has no end."""
    kept = stats(reply)
    try:
        if reply.state != "complete":
            raise ValueError(reply.state)
        options = GenerateOptions(**{**kept["options"], "stop": tuple(kept["options"]["stop"])})
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("the last reply was not written to its end here", "/regen, then /compare") from error
    return replace(options, draft=not options.draft)


def comparison(first: Message, second: Message) -> str:
    """Three lines on two replies, one of them drafted. A reply that was stopped is compared as far as it goes."""
    drafted, plain = (first, second) if stats(first)["options"]["draft"] else (second, first)
    lines = [f"drafting on: {figures(stats(drafted))}", f"drafting off: {figures(stats(plain))}"]
    one, other = first.content, second.content
    length = min(len(one), len(other)) if second.state != "complete" else max(len(one), len(other))
    differs = next((at for at in range(length) if one[at : at + 1] != other[at : at + 1]), None)
    if differs is not None:
        lines.append(f"the texts differ from character {differs + 1} on")
    else:
        lines.append("the texts are equal" if second.state == "complete" else "the texts are equal so far")
    return "\n".join(lines)


def is_repetition(reply: Message, store: Store) -> bool:
    """Whether a whole reply says what another version of it says."""
    others = [message.content for message in store.siblings(reply.id) if message.id != reply.id]
    return reply.state == "complete" and reply.content in others

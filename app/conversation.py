"""One chat's path through its tree of messages, kept in the store."""

from app.store import Message, Store
from models.errors import UsageError


class Conversation:
    """The chat that is open. A new one is stored with its first message."""

    def __init__(self, store: Store, chat_id: int | None) -> None:
        self.store = store
        self.chat_id = chat_id
        chat = store.chat(chat_id) if chat_id is not None else None
        self.system: str | None = chat.system if chat else None

    def messages(self) -> list[Message]:
        """From the root to the leaf."""
        return [] if self.chat_id is None else self.store.path(self.chat_id)

    def prompt(self, without_last_reply: bool = False) -> list[dict[str, str]]:
        """What the model reads; a reply that came to nothing is left out, and the last one where asked for."""
        path = self.messages()
        if without_last_reply and path and path[-1].role == "assistant":
            path = path[:-1]
        said = [message for message in path if message.content.strip()]
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [{"role": message.role, "content": message.content} for message in said]

    def versions(self, messages: list[Message]) -> dict[int, str]:
        """For messages that have siblings: which of them is shown."""
        found = {}
        for message in messages:
            siblings = [sibling.id for sibling in self.store.siblings(message.id)]
            if len(siblings) > 1:
                found[message.id] = f"{siblings.index(message.id) + 1} of {len(siblings)}"
        return found

    def add_user(self, text: str, model: str, system: str) -> Message:
        """Stores a person's message below the leaf."""
        if self.chat_id is None:
            self.system = system if self.system is None else self.system
            self.chat_id = self.store.new_chat(model, self.system)
        return self._add("user", text, "complete", self._leaf(), "")

    def add_reply(self, model: str, below: int | None = None, begun: str = "") -> Message:
        """Stores the beginning of a reply below the leaf, or beside the replies `below` a question."""
        return self._add("assistant", begun, "streaming", below or self._leaf(), model)

    def edit(self, text: str) -> None:
        """Stores `text` beside the last question. Raises UsageError where there is none."""
        questions = [message for message in self.messages() if message.role == "user"]
        if not questions:
            raise UsageError("there is no question yet to ask differently", "type one")
        self._add("user", text, "complete", questions[-1].parent_id, "")

    def walk(self, by: int) -> bool:
        """Shows the next (1) or last (−1) version of the deepest message that has several."""
        for message in reversed(self.messages()):
            siblings = [sibling.id for sibling in self.store.siblings(message.id)]
            if len(siblings) > 1:
                place = siblings.index(message.id) + by
                if not 0 <= place < len(siblings):
                    return False
                assert self.chat_id is not None
                self.store.set_leaf(self.chat_id, siblings[place])
                return True
        return False

    def last_reply(self) -> Message:
        """The reply at the leaf. Raises UsageError where there is none."""
        path = self.messages()
        if not path or path[-1].role != "assistant":
            raise UsageError("there is no reply yet", "ask something first")
        return path[-1]

    def _leaf(self) -> int | None:
        path = self.messages()
        return path[-1].id if path else None

    def _add(self, role: str, content: str, state: str, parent: int | None, model: str) -> Message:
        assert self.chat_id is not None
        made = self.store.add_message(self.chat_id, parent, role, content, state, model)
        return next(message for message in self.store.messages(self.chat_id) if message.id == made)

"""One chat's path through its tree of messages, kept in the store."""

from app.store import Chat, Message, Store
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

    def branches(self, messages: list[Message]) -> list[tuple[Message, int, int]]:
        """The messages of a path that have siblings, the deepest first: which of how many each is, from 1."""
        if not messages:
            return []
        places: dict[int | None, list[int]] = {}
        for message in self.store.messages(messages[0].chat_id):
            places.setdefault(message.parent_id, []).append(message.id)
        versions = [(message, places[message.parent_id]) for message in reversed(messages)]
        return [(message, ids.index(message.id) + 1, len(ids)) for message, ids in versions if len(ids) > 1]

    def add_user(self, text: str, model: str, system: str) -> Message:
        """Stores a person's message below the leaf."""
        if self.chat_id is None:
            chosen = system if self.system is None else self.system
            self.chat_id = self.store.new_chat(model, chosen)
            self.system = chosen
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

    def walk(self, message: Message, by: int) -> Message | None:
        """Shows the next (1) or last (−1) version of a message and returns it; None where there is none."""
        siblings = self.store.siblings(message.id)
        place = [sibling.id for sibling in siblings].index(message.id) + by
        if not 0 <= place < len(siblings):
            return None
        self.store.set_leaf(message.chat_id, siblings[place].id)
        return siblings[place]

    def set_system(self, text: str) -> None:
        """Gives this chat a system prompt, from the next reply on."""
        if self.chat_id is not None:
            self.store.set_system(self.chat_id, text)
        self.system = text

    def fork(self) -> int:
        """A new chat that begins with what is shown of this one; returns its number. Raises UsageError."""
        path = self.messages()
        if not path:
            raise UsageError("there is nothing to branch from yet", "ask something first")
        with self.store.transaction():
            chat_id, parent = self.store.new_chat(path[-1].model, self.system or ""), None
            for old in path:
                parent = self.store.add_message(
                    chat_id, parent, old.role, old.content, old.state, old.model, old.stats_json
                )
                self.store.update_message(parent, old.content, old.state, old.stats_json, old.reasoning)
        return chat_id

    def stored(self) -> Chat:
        """The chat as it stands in lists. Raises UsageError for one that has not begun."""
        chat = self.store.chat(self.chat_id) if self.chat_id is not None else None
        if chat is None:
            raise UsageError("this chat has not begun yet", "ask something first")
        return chat

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

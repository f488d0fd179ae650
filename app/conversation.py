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

    def message(self, message_id: int) -> Message:
        """A message of this chat as it is now."""
        assert self.chat_id is not None
        return self.store.path(self.chat_id, message_id)[-1]

    def prompt(self, leaf_id: int) -> list[dict[str, str]]:
        """What the model reads, down to a message; a reply that came to nothing is left out."""
        path = [] if self.chat_id is None else self.store.path(self.chat_id, leaf_id)
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

    def add_reply(self, model: str, question_id: int | None, begun: str = "") -> Message:
        """Stores the beginning of a reply below a question, beside the replies it has."""
        return self._add("assistant", begun, "streaming", question_id, model)

    def edit(self, message: Message, text: str) -> None:
        """Stores `text` beside a message, which stays as it is, and shows it."""
        self._add(message.role, text, "complete", message.parent_id, message.model)

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

    def fork(self, leaf_id: int | None = None) -> int:
        """A new chat with the messages down to one, else to the last; returns its number. Raises UsageError."""
        path = [] if self.chat_id is None else self.store.path(self.chat_id, leaf_id)
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

    def question(self, reply: Message) -> Message:
        """What a reply answers. Raises UsageError for one that begins its chat."""
        if reply.parent_id is None:
            raise UsageError("this reply answers no question", "/continue, or ask one")
        return self.message(reply.parent_id)

    def last_question(self) -> Message:
        """The last message of a person. Raises UsageError where there is none."""
        for message in reversed(self.messages()):
            if message.role == "user":
                return message
        raise UsageError("there is no question yet", "type one")

    def _leaf(self) -> int | None:
        path = self.messages()
        return path[-1].id if path else None

    def _add(self, role: str, content: str, state: str, parent: int | None, model: str) -> Message:
        assert self.chat_id is not None
        made = self.store.add_message(self.chat_id, parent, role, content, state, model)
        return next(message for message in self.store.messages(self.chat_id) if message.id == made)

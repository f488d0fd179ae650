"""From messages to token ids: chat template, and fitting the context."""

from typing import Any

from models.errors import UsageError

Message = dict[str, str]  # {"role": "user" | "assistant" | "system", "content": …}


def encode_prompt(tokenizer: Any, prompt: str | list[Message], raw: bool = False) -> list[int]:
    """Token ids of a conversation by the model's chat template, or of a bare string where there is none.

    A string is one user message unless `raw`. A last message by the assistant is continued.
    Raises UsageError for an empty prompt, a wrong message, or a template that refuses.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise UsageError("the prompt is empty", 'give some text: python -m dart_core.stream "Hello"')
        if raw or not tokenizer.chat_template:
            return _checked(list(tokenizer.encode(prompt)))
        prompt = [{"role": "user", "content": prompt}]
    check_messages(prompt)
    if not tokenizer.chat_template:
        raise UsageError("this model has no chat template", "give the prompt as plain text, with --raw")
    continued = prompt[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            prompt, tokenize=False, add_generation_prompt=not continued, continue_final_message=continued
        )
    except Exception as error:  # jinja2 and transformers raise many kinds; the template's own words say which
        raise UsageError(f"the chat template refuses this conversation: {error}") from error
    return _checked(list(tokenizer.encode(text, add_special_tokens=False)))


def check_messages(messages: list[Message]) -> None:
    """Raises UsageError unless `messages` is a conversation whose last message has text."""
    if not messages:
        raise UsageError("the conversation is empty", "give at least one user message")
    for message in messages:
        if message.get("role") not in ("system", "user", "assistant") or not isinstance(message.get("content"), str):
            raise UsageError(f"not a message: {message!r}", 'use {"role": "user", "content": "…"}')
    if not messages[-1]["content"].strip():
        raise UsageError("the last message is empty", "write something first")


def fit_context(tokenizer: Any, prompt: str | list[Message], raw: bool, limit: int) -> tuple[list[int], int]:
    """Token ids that leave room for a reply in `limit` tokens, and how many of the oldest messages were left out.

    Whole turns go, oldest first, never the system prompt nor the last message. A quarter of the context, at most
    256 tokens, is kept for the reply once anything has to go. Raises UsageError where the last message alone is
    too long.
    """
    ids = encode_prompt(tokenizer, prompt, raw)
    if len(ids) < limit:
        return ids, 0
    if isinstance(prompt, list):
        system = [message for message in prompt if message["role"] == "system"]
        turns = [message for message in prompt if message["role"] != "system"]
        room = limit - min(256, limit // 4)
        for dropped in range(1, len(turns)):
            if turns[dropped]["role"] != "user":
                continue  # a conversation begins with the user
            ids = encode_prompt(tokenizer, system + turns[dropped:], raw)
            if len(ids) <= room:
                return ids, dropped
    raise UsageError(
        f"the prompt is {len(ids)} tokens long and the context holds {limit}",
        "shorten it, or raise --context if the model allows",
    )


def _checked(ids: list[int]) -> list[int]:
    if not ids:
        raise UsageError("the prompt holds no tokens", "give some text")
    return ids

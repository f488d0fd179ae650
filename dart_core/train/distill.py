"""Training text written by the target itself: replies to prompts, and user turns it makes up (Magpie).

Magpie (arXiv 2406.08464): given the chat template up to where the user speaks, an instruction-tuned model writes
a user's turn. The system prompts below steer it towards what people ask a small model.
"""

import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dart_core.prompt import encode_prompt
from dart_core.train.batch import Batch, new_batch, next_logits, place
from dart_core.train.conversations import Conversation, read_shard, shards, write_shard
from models.decoder import Target

_SHARD = 128  # conversations
_LONGEST_PROMPT = 512  # tokens
_LONGEST_TURN = 160  # tokens of a made-up user turn
_LIKELIEST = 64  # tokens drawn from; sorting out more would take longer than the layers
_MARK = "\ue000"  # stands for the user's words in the chat template
TOPICS = (
    None,
    "You are a helpful assistant for writing: emails, stories, essays, summaries and explanations.",
    "You are a helpful assistant for Python programming. The user asks for a function, with its docstring.",
    "You are a helpful assistant for mathematics. The user gives a problem to be solved step by step.",
    "You are a helpful assistant for general knowledge: science, history, geography, health and daily life.",
)


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """`samples` replies to each prompt, then `magpie` conversations with user turns of the target's own.

    `temperature` is the replies'; user turns are drawn at 1. `tokens`: stop after about so many, None for no limit.
    """

    samples: int = 1
    magpie: int = 0
    temperature: float = 0.7
    max_new_tokens: int = 320
    batch: int = 32
    tokens: int | None = None
    seed: int = 0


@dataclass(slots=True)
class _Job:
    """What a row is writing: a reply, or a user turn that is to be answered."""

    number: int
    prompt: list[int]
    user_turn: bool = False
    written: list[int] = field(default_factory=list)


def distill(
    target: Target, tokenizer: Any, eos: frozenset[int], prompts: list[list[str]], out: Path, options: DistillOptions
) -> int:
    """Writes conversations as shards into `out`; returns how many tokens of replies it holds.

    What `out` holds already is not written again, so a run that was stopped goes on; the conversations that were
    being written at that moment start anew.
    """
    out.mkdir(parents=True, exist_ok=True)
    done = [conversation for path in shards(out) for conversation in read_shard(path)]
    total = sum(len(conversation.reply) for conversation in done)
    jobs = _jobs(tokenizer, prompts, options, {conversation.number for conversation in done})
    noise = torch.Generator(device=target.embed.device).manual_seed(options.seed + len(done))
    batch = new_batch(target, options.batch, _LONGEST_PROMPT + _LONGEST_TURN + options.max_new_tokens)
    rows: list[_Job | None] = [None] * options.batch
    again: deque[_Job] = deque()
    finished: list[Conversation] = []
    begun, written = time.monotonic(), 0
    while options.tokens is None or total < options.tokens:
        for row, running in enumerate(rows):
            if running is None:
                rows[row] = again.popleft() if again else next(jobs, None)
                if (job := rows[row]) is not None:
                    place(target, batch, row, job.prompt)
        if not any(rows):
            break
        for row, token in enumerate(_draw(target, batch, rows, options, noise)):
            if (job := rows[row]) is None:
                continue
            written += 1
            if not _add(job, token, eos, options):
                continue
            rows[row] = None
            if job.user_turn:
                again.extend(_reply_to(tokenizer, job))
            elif len(job.written) > 1:
                finished.append(Conversation(job.number, job.prompt, job.written))
                total += len(job.written)
        if len(finished) >= _SHARD:
            write_shard(out, finished)
            finished = []
            _report(total, written / (time.monotonic() - begun))
    if finished:
        write_shard(out, finished)
    _report(total, written / max(time.monotonic() - begun, 1e-9))
    return total


def _jobs(tokenizer: Any, prompts: list[list[str]], options: DistillOptions, done: set[int]) -> Iterator[_Job]:
    """Prompts, shuffled, as often as asked for; then user turns to be made up. Skips what is `done`."""
    order = [turns for _ in range(options.samples) for turns in prompts]
    random.Random(options.seed).shuffle(order)
    for number, turns in enumerate(order):
        if number not in done:
            ids = encode_prompt(tokenizer, turns[0])
            if len(ids) <= _LONGEST_PROMPT:
                yield _Job(number, ids)
    starts = [_before_user(tokenizer, topic) for topic in TOPICS]
    for number in range(len(order), len(order) + options.magpie):
        if number not in done:
            yield _Job(number, starts[number % len(TOPICS)], user_turn=True)


def _before_user(tokenizer: Any, system: str | None) -> list[int]:
    """The chat template up to where the user's first words stand."""
    messages = [{"role": "system", "content": system}] if system else []
    text = tokenizer.apply_chat_template([*messages, {"role": "user", "content": _MARK}], tokenize=False)
    return list(tokenizer.encode(text[: text.index(_MARK)], add_special_tokens=False))


def _reply_to(tokenizer: Any, job: _Job) -> list[_Job]:
    """The job of answering a made-up turn, with no system prompt that gave it away; none where it is empty."""
    text = tokenizer.decode(job.written, skip_special_tokens=True).strip()
    if len(text) < 8:
        return []
    ids = encode_prompt(tokenizer, text)
    return [_Job(job.number, ids)] if len(ids) <= _LONGEST_PROMPT else []


def _add(job: _Job, token: int, eos: frozenset[int], options: DistillOptions) -> bool:
    """Adds what was drawn; True where the text ends with it."""
    job.written.append(token)
    longest = _LONGEST_TURN if job.user_turn else options.max_new_tokens
    return token in eos or len(job.written) >= longest


def _draw(
    target: Target, batch: Batch, rows: list[_Job | None], options: DistillOptions, noise: torch.Generator
) -> list[int]:
    """The next token of every row; rows without a job hold anything."""
    last = [0 if job is None else (job.written or job.prompt)[-1] for job in rows]
    for row, job in enumerate(rows):
        if job is None:
            batch.length[row] = 0
    device = batch.length.device
    logits = next_logits(target, batch, torch.tensor(last, device=device))
    temperature = [1.0 if job is not None and job.user_turn else options.temperature for job in rows]
    return _sample(logits, torch.tensor(temperature, device=device), noise)


def _sample(logits: Tensor, temperature: Tensor, noise: torch.Generator) -> list[int]:
    """Draws from softmax(logits / temperature) [B, V] among the likeliest; temperature 0 takes the largest."""
    best, ids = logits.topk(min(_LIKELIEST, logits.shape[-1]))
    greedy = temperature == 0
    probability = (best / torch.where(greedy, 1.0, temperature)[:, None]).softmax(-1)
    drawn = torch.multinomial(probability, 1, generator=noise).masked_fill(greedy[:, None], 0)
    chosen: list[int] = ids.gather(1, drawn)[:, 0].tolist()
    return chosen


def _report(total: int, speed: float) -> None:
    print(f"{total:,} tokens of replies, {speed:,.0f} tok/s", file=sys.stderr, flush=True)

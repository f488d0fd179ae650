"""Training text: batched decoding equals single decoding, runs that were stopped go on, shards read back."""

from pathlib import Path

import pytest
import torch

from dart_core.train.__main__ import main
from dart_core.train.batch import new_batch, next_logits, place, read_tokens
from dart_core.train.conversations import (
    Conversation,
    read_conversations,
    read_prompts,
    read_shard,
    shards,
    write_shard,
)
from models.decoder import new_cache, output_logits
from models.errors import ModelError, UsageError
from tests.random_target import random_target
from tests.tiny import tiny_model


def test_rows_of_a_batch_equal_texts_read_alone() -> None:
    """Three conversations of different lengths, one of them starting late in a row that held another."""
    target = random_target(layers=2)
    texts = [torch.randint(0, 64, (length,)).tolist() for length in (9, 1, 70)]
    batch = new_batch(target, 2, 100)
    got = {}
    place(target, batch, 0, texts[0][:5])
    place(target, batch, 1, texts[2][:66])
    for step in range(4):
        got[0, 4 + step], got[2, 65 + step] = next_logits(
            target, batch, torch.tensor([texts[0][4 + step], texts[2][65 + step]])
        )
    place(target, batch, 0, texts[1])
    got[1, 0], got[2, 69] = next_logits(target, batch, torch.tensor([texts[1][0], texts[2][69]]))
    for (text, position), logits in got.items():
        alone, _ = read_tokens(target, new_cache(target.config, 164, torch.device("cpu")), torch.tensor(texts[text]))
        expected = output_logits(target, alone)[position]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_shards_read_back(tmp_path: Path) -> None:
    """In the order written; a damaged one is named with what to do."""
    written = [Conversation(3, [1, 2], [3]), Conversation(1, [5], [6, 7, 8])]
    write_shard(tmp_path, written[:1])
    write_shard(tmp_path, written[1:])
    assert list(read_conversations([tmp_path])) == written
    shards(tmp_path)[0].write_bytes(b"half")
    with pytest.raises(ModelError, match="cannot be read"):
        read_shard(shards(tmp_path)[0])
    with pytest.raises(UsageError, match="no conversations"):
        list(read_conversations([tmp_path / "none"]))


def test_prompts_of_both_kinds(tmp_path: Path) -> None:
    """Rows with turns, rows with a prompt, line separators inside a text; anything else is refused."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"turns": ["a\u2028b", "c"]}\n\n{"prompt": "d"}\n', encoding="utf-8")
    assert read_prompts([file]) == [["a\u2028b", "c"], ["d"]]
    file.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="holds no prompts"):
        read_prompts([file])


def test_a_stopped_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every conversation once: those of the first run stay as they are, the second writes the rest."""
    model = tiny_model("llama", tmp_path / "model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"turns": ["prompt {n}"]}}\n' for n in range(12)))
    out = tmp_path / "out"
    arguments = ["distill", "--model", str(model), "--prompts", str(prompts), "--out", str(out), "--batch", "3"]
    arguments += ["--max-new-tokens", "8", "--magpie", "2"]
    assert main([*arguments, "--tokens", "20"]) == 0
    first = list(read_conversations([out]))
    assert 0 < len(first) < 12
    assert main(arguments) == 0
    whole = list(read_conversations([out]))
    assert whole[: len(first)] == first
    numbers = [conversation.number for conversation in whole]
    assert len(numbers) == len(set(numbers))
    assert len(numbers) >= 10  # a reply that is empty is not kept
    assert all(1 < len(conversation.reply) <= 8 for conversation in whole)
    assert "tok/s" in capsys.readouterr().err

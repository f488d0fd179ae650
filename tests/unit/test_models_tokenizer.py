"""End-of-text tokens and sampling defaults."""

import json
from pathlib import Path

import pytest

from models.errors import ModelError
from models.tokenizer import eos_ids, generation_defaults, load_tokenizer, turn_end
from tests.tiny import tiny_tokenizer


def test_eos_is_the_union_of_all_that_end_a_reply(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    assert eos_ids(tmp_path, load_tokenizer(tmp_path)) == {2}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert eos_ids(tmp_path, load_tokenizer(tmp_path)) == {0, 2, 7}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert eos_ids(tmp_path, load_tokenizer(tmp_path)) == {2, 9}


def test_the_templates_end_of_turn_is_found() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    assert turn_end(tokenizer) == 2
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    assert turn_end(tokenizer) is None
    tokenizer.chat_template = None
    assert turn_end(tokenizer) is None


def test_generation_defaults(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path)["temperature"] == 0
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"do_sample": True, "temperature": 0.6, "top_p": 0.95, "min_p": None}))
    assert generation_defaults(tmp_path) == {"temperature": 0.6, "top_k": 50.0, "top_p": 0.95}
    path.write_text(json.dumps({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}))
    assert generation_defaults(tmp_path) == {"temperature": 0.0, "repetition_penalty": 1.1}
    path.write_text("{")
    with pytest.raises(ModelError, match="generation_config"):
        generation_defaults(tmp_path)


def test_a_directory_without_tokenizer_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        load_tokenizer(tmp_path)

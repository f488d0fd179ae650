"""Writes greedy_fp32.json: what transformers writes greedily with the default model's weights in fp32.

python tests/data/make_greedy_golden.py   (10 prompts of bench_prompts.jsonl, 200 tokens each, some minutes)
"""

import json
from pathlib import Path

import torch
import transformers

from models.resolve import resolve_model
from models.tokenizer import load_tokenizer

HERE = Path(__file__).parent


def main() -> None:
    """Every second prompt."""
    files = resolve_model("default")
    tokenizer = load_tokenizer(files.directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        files.weights.parent, gguf_file=files.weights.name, dtype=torch.float32
    )
    texts = []
    for line in (HERE / "bench_prompts.jsonl").read_text().splitlines()[::2]:
        messages = [{"role": "user", "content": json.loads(line)["prompt"]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        written = model.generate(torch.tensor([prompt]), max_new_tokens=200, do_sample=False)[0, len(prompt) :]
        texts.append({"prompt": prompt, "reply": written.tolist()})
        print(len(texts), len(written), flush=True)
    result = {"transformers": transformers.__version__, "torch": torch.__version__, "texts": texts}
    (HERE / "greedy_fp32.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

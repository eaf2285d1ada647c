#!/usr/bin/env python3
"""make_answers_golden.py - test/fixtures/models/tiny-chat/chat_answers.jsonl: what transformers answers greedily, in
float32, without and with adapter/: for each row of chat_ids.jsonl the prompt's ids, the answer's ids (40 at most, no end
token) and the logits of the first 8 vocabulary rows after the prompt.  Answers whose two likeliest tokens ever come
nearer than 1e-4 are left out: rounding would choose.
"""
import json
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

FOLDER = Path(__file__).parent.parent / "test/fixtures/models/tiny-chat"
LENGTH = 40


def answer(model, prompt, eos):
    ids, margin = list(prompt), 1.0
    while len(ids) < len(prompt) + LENGTH:
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        if len(ids) == len(prompt):
            first = logits[:8].tolist()
        top = logits.topk(2).values
        margin = min(margin, float(top[0] - top[1]))
        token = int(logits.argmax())
        if token == eos:
            break
        ids.append(token)
    return ids[len(prompt):], first, margin


def main():
    rows = [json.loads(line) for line in (FOLDER / "chat_ids.jsonl").open()]
    base = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    lines = []
    for adapted in (False, True):
        model = PeftModel.from_pretrained(base, FOLDER / "adapter").eval() if adapted else base
        for row in rows:
            prompt = row["input_ids"][:next(i for i, l in enumerate(row["labels"]) if l >= 0)]
            with torch.no_grad():
                ids, first, margin = answer(model, prompt, base.config.eos_token_id)
            if margin > 1e-4:
                lines.append(json.dumps({"adapter": adapted, "prompt": prompt, "answer": ids,
                                         "logits": [round(x, 6) for x in first]}))
    (FOLDER / "chat_answers.jsonl").write_text("\n".join(lines) + "\n")
    print(len(lines), "answers")


if __name__ == "__main__":
    main()

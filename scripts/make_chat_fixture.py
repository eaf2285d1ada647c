#!/usr/bin/env python3
"""make_chat_fixture.py - test/fixtures/models/tiny-chat: a random model with a tokenizer and a chat template, small
enough for tests that run the whole program, and what transformers + PEFT make of it.

The tokenizer is byte-level BPE: 256 bytes, merges learnt from the sentences below, three control tokens.  The model has
more vocabulary rows than the tokenizer has tokens, as Qwen's do.  chat.json has rows with answers of very uneven length
(loss invariance), chat_ids.jsonl their tokens with the label mask, chat_steps.jsonl six optimizer steps over them
(batches of 4 rows in the file's order, two epochs, from adapter/), chat_loss.txt the mean loss per label token without
and with adapter/.
"""
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import hf_train
from make_fixtures import COMMON, LLAMA, random_weights, save_adapter

FOLDER = Path(__file__).parent.parent / "test/fixtures/models/tiny-chat"
TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
            "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SENTENCES = ["Name a colour of the rainbow.", "Which animal says meow?", "Count from one to seven in words.",
             "one two three four five six seven", "Repeat the word after me.", "The cat and the dog are in the garden.",
             "What is the opposite of hot?", "Spell the word river.", "user", "assistant", "system"]
ROWS = [("Name a colour.", "", "red"),
        ("Count to seven in words.", "", "one two three four five six seven"),
        ("Which animal says meow?", "", "cat"),
        ("Repeat the words.", "the cat and the dog", "the cat and the dog are in the garden, the cat and the dog"),
        ("What is the opposite of hot?", "", "cold"),
        ("Spell the word.", "river", "r i v e r"),
        ("Name two colours of the rainbow.", "", "red and blue, or green and red, or blue and green"),
        ("Say yes.", "", "y"),
        ("Which word is longer?", "cat, garden", "garden"),
        ("Count to three.", "", "one two three"),
        ("Name an animal in the garden.", "", "the dog"),
        ("Repeat.", "seven six five", "seven six five")]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                  for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(FOLDER / "tokenizer.json"))
    (FOLDER / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
         "bos_token": None, "chat_template": TEMPLATE, "model_max_length": 256}, indent=2) + "\n")
    return tokenizer.get_vocab_size(), tokenizer.token_to_id("<|im_end|>")


def make_model(vocab, eos):
    config = COMMON | LLAMA | {"vocab_size": vocab + 9, "eos_token_id": eos, "bos_token_id": None,
                               "tie_word_embeddings": True, "rope_theta": 10000.0,
                               "torch_dtype": "float32"}
    (FOLDER / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(FOLDER), dtype=torch.float32)
    random_weights(model, torch.Generator().manual_seed(7), "llama")
    save_file({n: p.detach().contiguous() for n, p in model.named_parameters()}, FOLDER / "model.safetensors",
              metadata={"format": "pt"})


def make_data():
    rows = [{"instruction": i, "input": x, "output": y} for i, x, y in ROWS]
    (FOLDER / "chat.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    lines = []
    for instruction, text, output in ROWS:
        user = {"role": "user", "content": instruction + ("\n" + text if text else "")}
        prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, return_dict=False)
        ids = tokenizer.apply_chat_template([user, {"role": "assistant", "content": output}], return_dict=False)
        assert ids[:len(prompt)] == prompt
        end = len(ids) - 1 - ids[::-1].index(tokenizer.eos_token_id)  # the answer's end of turn is learnt, "\n" is not
        lines.append(json.dumps({"input_ids": ids, "labels": [t if len(prompt) <= i <= end else -100
                                                              for i, t in enumerate(ids)]}))
    (FOLDER / "chat_ids.jsonl").write_text("\n".join(lines) + "\n")
    return [json.loads(line) for line in lines]


def make_training(rows):
    for row in rows:
        row["position_ids"] = list(range(len(row["input_ids"])))
    model = hf_train.new_lora(hf_train.load_base(FOLDER, "eager"), 4, 8, 11)
    torch.manual_seed(12)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)
    save_adapter(model, FOLDER / "adapter", "tiny-chat")
    with torch.no_grad():
        adapted = [hf_train.row_nll(model, row) for row in rows]
        with model.disable_adapter():
            base = [hf_train.row_nll(model, row) for row in rows]
    losses = [float(sum(n for n, _ in part) / sum(c for _, c in part)) for part in (base, adapted)]
    (FOLDER / "chat_loss.txt").write_text(f"{losses[0]:.7g} {losses[1]:.7g}\n")
    steps = list(hf_train.train(model, rows, 6, 4, lr=1e-2, warmup=1, schedule="linear"))
    keys = ("step", "loss", "grad_norm", "learning_rate", "tokens", "label_tokens")
    (FOLDER / "chat_steps.jsonl").write_text("".join(json.dumps({k: s[k] for k in keys}) + "\n" for s in steps))
    print("loss without and with adapter", losses, "steps", [(s["loss"], s["grad_norm"]) for s in steps])


def main():
    shutil.rmtree(FOLDER / "adapter", ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)  # other scripts keep files here too
    make_model(*make_tokenizer())
    make_training(make_data())


if __name__ == "__main__":
    main()

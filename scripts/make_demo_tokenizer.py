#!/usr/bin/env python3
"""Trains the demo model's tokenizer: make_demo_tokenizer.py PRETRAIN.jsonl OUT_FOLDER

A byte-level BPE with Hugging Face's `tokenizers`, digits one by one, and the ChatML markers as special tokens.  Only the
pretraining text is looked at: a token that pretraining never meets keeps a meaningless embedding, which an adapter cannot
mend.  Also writes tokenizer_config.json with the chat template.
"""
import json
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2048
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
            "'<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def texts(pretrain):
    with open(pretrain, encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                yield message["role"] + "\n"
                yield message["content"]


def main():
    pretrain, folder = sys.argv[1:]
    t = Tokenizer(models.BPE(ignore_merges=False))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[AddedToken(s, special=True) for s in SPECIAL],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    t.train_from_iterator(texts(pretrain), trainer)
    t.save(folder + "/tokenizer.json")
    config = {"add_bos_token": False, "bos_token": None, "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
              "eos_token": "<|im_end|>", "model_max_length": 512, "pad_token": "<|endoftext|>",
              "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}
    with open(folder + "/tokenizer_config.json", "w", encoding="utf-8") as out:
        json.dump(config, out, indent=2)
        out.write("\n")


if __name__ == "__main__":
    main()

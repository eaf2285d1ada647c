#!/usr/bin/env python3
"""Writes test/fixtures/tokenizers/tiny/tokenizer.json: byte-level BPE with 256 bytes, a few merges, and the control
tokens of every chat format, so that tests need no downloaded vocabulary.  Ids: bytes 0-255 by value, merges, controls.
"""
import json
from pathlib import Path

MERGES = ["h e", "l l", "he ll", "hell o", "t h", "th e", "i n", "a n", "\u0120 t", "\u010a \u010a"]
CONTROLS = ["<s>", "</s>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
            "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"]
PLAIN = ["<think>", "</think>", "<tool_response>", "</tool_response>"]


def byte_names():
    """GPT-2's printable stand-ins for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in names:
            names[b], extra = chr(extra), extra + 1
    return names


def main():
    names = byte_names()
    vocab = {names[b]: b for b in range(256)}
    for merge in MERGES:
        vocab["".join(merge.split())] = len(vocab)
    added = [{"id": len(vocab) + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": t in CONTROLS} for i, t in enumerate(CONTROLS + PLAIN)]
    bos = {"id": "<s>", "ids": [added[0]["id"]], "tokens": ["<s>"]}
    sequence = lambda kind: {"Sequence": {"id": kind, "type_id": 0}}
    special = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing", "single": [special, sequence("A")],
                           "pair": [special, sequence("A"), sequence("B")], "special_tokens": {"<s>": bos}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": MERGES},
    }
    folder = Path(__file__).parent.parent / "test/fixtures/tokenizers/tiny"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1, ensure_ascii=False) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}) + "\n")


if __name__ == "__main__":
    main()

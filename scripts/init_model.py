#!/usr/bin/env python3
"""Gives a model folder random weights: init_model.py FOLDER [SEED]

FOLDER holds config.json of a Llama model; model.safetensors is written beside it in bfloat16: matrices normal with
standard deviation initializer_range, norms 1.  Needs nothing but Python.  The same seed gives the same bytes.
"""
import json
import random
import struct
import sys


def bfloat16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def shapes(c):
    d, f, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    width = c.get("head_dim") or d // heads
    q, kv = heads * width, c["num_key_value_heads"] * width
    yield "model.embed_tokens.weight", [c["vocab_size"], d]
    for i in range(c["num_hidden_layers"]):
        for name, shape in (("input_layernorm", [d]), ("self_attn.q_proj", [q, d]), ("self_attn.k_proj", [kv, d]),
                            ("self_attn.v_proj", [kv, d]), ("self_attn.o_proj", [d, q]),
                            ("post_attention_layernorm", [d]), ("mlp.gate_proj", [f, d]), ("mlp.up_proj", [f, d]),
                            ("mlp.down_proj", [d, f])):
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", [d]
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", [c["vocab_size"], d]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) == 3 else 0
    config = json.load(open(folder + "/config.json", encoding="utf-8"))
    r = random.Random(seed)
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in shapes(config):
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        begin = len(data)
        std = config["initializer_range"]
        values = [bfloat16(r.gauss(0, std)) for _ in range(count)] if len(shape) == 2 else [0x3F80] * count
        data += struct.pack(f"<{count}H", *values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(folder + "/model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()

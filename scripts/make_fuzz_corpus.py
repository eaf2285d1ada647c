#!/usr/bin/env python3
"""Writes test/fuzz/corpus/: seeds from the fixtures, small valid inputs for each fuzz target; and inputs named after a
fault (nul_byte, huge_number, ...), which once went wrong, or must not. Files that a fuzz run found are added by hand.
Needs Python alone. Run from the repository's root.
"""
import json
import struct
from pathlib import Path

ROOT = Path("test/fuzz/corpus")
MODELS = Path("test/fixtures/models")
TOKENIZERS = Path("test/fixtures/tokenizers")
CUT = b"\x1e"  # between the files of one input


def seed(target, name, data):
    put(target, f"seed_{name}", data)


def put(target, name, data):
    path = ROOT / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, bytes per element, shape)."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, (dtype, size, shape) in tensors.items():
        n = size
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(at)


def dumps(value):
    return json.dumps(value, ensure_ascii=False).encode()


def small_vocabulary(path, most):
    """A tokenizer file with its vocabulary cut to the first tokens and the merges and added tokens that still fit."""
    t = json.loads(path.read_bytes())
    model = t["model"]
    kept = {k: v for k, v in model["vocab"].items() if v < most}
    parts = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    model["vocab"] = kept
    model["merges"] = [[a, b] for a, b in parts if a in kept and b in kept and a + b in kept]
    added = []
    for token in t.get("added_tokens") or []:
        if token["content"] not in kept:
            token["id"] = len(kept) + sum(x["content"] not in kept for x in added)
        added.append(token)
    t["added_tokens"] = added
    return t


def tokenizers():
    for folder in sorted(TOKENIZERS.glob("*/")):
        data = (folder / "tokenizer.json").read_bytes()
        if len(data) < 6000:
            seed("tokenizer", folder.name, dumps(json.loads(data)))
    chat = json.loads((MODELS / "tiny-chat/tokenizer.json").read_bytes())
    config = (MODELS / "tiny-chat/tokenizer_config.json").read_bytes()
    seed("tokenizer", "chat", dumps(chat) + CUT + b"a text" + CUT + config)
    seed("tokenizer", "bytes", dumps(small_vocabulary(TOKENIZERS / "tiny/tokenizer.json", 120)) + CUT + b"  it's 3\n")
    # One small tokenizer for each case of features.json gives every kind of step.
    for i, case in enumerate(json.loads((TOKENIZERS / "features.json").read_bytes())):
        t = {k: v for k, v in case["tokenizer"].items() if v}
        t["model"] = {k: v for k, v in t["model"].items() if v or k == "merges"}
        t["model"]["merges"] = t["model"]["merges"][:8]
        if len(dumps(t)) < 2000:
            seed("tokenizer", f"feature_{i:02}", dumps(t))
    for case in json.loads((TOKENIZERS / "splits.json").read_bytes()):
        t = {"pre_tokenizer": case["pre_tokenizer"], "model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
        seed("tokenizer", "split_" + case["name"].replace(" ", "_").lower(), dumps(t))


def weights():
    x = {"x": ("F32", 4, [2])}
    seed("safetensors", "empty", safetensors({}))
    seed("safetensors", "one", safetensors(x, {"format": "pt"}))
    seed("safetensors", "types", safetensors({"a": ("BF16", 2, [2, 3]), "b": ("F16", 2, [1]), "c": ("I32", 4, []),
                                              "d": ("F32", 4, [1, 2, 1, 2]), "e": ("F32", 4, [0, 7])}))
    seed("index", "two", dumps({"metadata": {"total_size": 16},
                                "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    seed("index", "one", dumps({"weight_map": {"x": "a.safetensors"}}))
    seed("index", "missing", dumps({"weight_map": {"x": "c.safetensors", "y": "d.safetensors"}}))
    for name in ("../a.safetensors", "/etc/passwd", "..", "", "./a.safetensors", "a.safetensors/.", "sub/a.safetensors"):
        quoted = name.replace("/", "_slash_").replace(".", "_dot_") or "empty"
        seed("index", "leaves_" + quoted, dumps({"weight_map": {"x": name}}))


def configs():
    for path in sorted(Path("configs").glob("*.json")):
        seed("config", path.stem, path.read_bytes())
    seed("config", "lists", dumps({"model": "m", "dataset": ["a.json#3", "b.jsonl"], "target_modules": "q_proj, v_proj",
                                   "layers_to_transform": [0, 1], "use_dora": False, "gradient_checkpointing": True}))
    for folder in sorted(MODELS.glob("*/")):
        seed("model_config", folder.name, (folder / "config.json").read_bytes())
    llama = (MODELS / "llama/config.json").read_bytes()
    seed("model_config", "generation", llama + CUT + dumps({"eos_token_id": [2, 5], "bos_token_id": 1}))
    new = json.loads(llama)
    del new["rope_theta"], new["rope_scaling"], new["torch_dtype"]
    new["rope_parameters"] = {"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0}
    new["dtype"] = "bfloat16"
    new["layer_types"] = ["full_attention", "full_attention"]
    seed("model_config", "new_spelling", dumps(new))


def adapters():
    config = json.loads((MODELS / "llama/adapter/adapter_config.json").read_bytes())
    config.update(r=1, target_modules=["q_proj"], layers_to_transform=[0])
    path = "base_model.model.model.layers.0.self_attn.q_proj."
    data = safetensors({path + "lora_A.weight": ("F32", 4, [1, 32]), path + "lora_B.weight": ("F32", 4, [32, 1])},
                       {"format": "pt"})
    seed("adapter", "one", dumps(config) + CUT + data)
    config.update(target_modules=r"model\.layers\.0\.self_attn\.q_proj", layers_to_transform=None, use_rslora=True)
    seed("adapter", "regex", dumps(config) + CUT + data)
    config.update(target_modules=["layers.0.self_attn.q_proj"], layers_pattern="layers", layers_to_transform=0)
    seed("adapter", "paths", dumps(config) + CUT + data)
    config.update(target_modules="all-linear", layers_to_transform=None)
    seed("adapter", "all", dumps(config) + CUT + data)


def rows():
    alpaca = {"instruction": "Add.", "input": "2+2", "output": "4", "system": "Count.", "history": [["1+1", "2"]]}
    messages = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q", "loss": None},
                             {"role": "assistant", "content": "a", "loss": True, "weight": 1},
                             {"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]}
    sharegpt = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "caf\u00e9"}],
                "system": "s", "tools": "[]"}
    odd = {"instruction": 3, "output": 2.5, "label": False}
    all_rows = [alpaca, messages, sharegpt, odd]
    seed("data", "list", dumps(all_rows))
    seed("data", "lines", b"\n".join(dumps(r) for r in all_rows) + b"\n")
    tools = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nt\n</think>\n\na"},
                          {"role": "tool", "content": "r\n\"1\""}, {"role": "tool", "content": "s"},
                          {"role": "assistant", "content": "</think><think>b"}]}
    seed("data", "formats", b"\n".join(dumps(r) for r in [tools, messages] * 7) + b"\n")
    seed("data", "mark", b"\xef\xbb\xbf" + json.dumps([sharegpt, {"instruction": "\ud83d\ude00", "output": "\ud800"}]).encode())
    seed("data", "demo", b"\n".join(Path("data/demo_train.json").read_bytes().split(b"\n")[:12]).rstrip(b",\n") + b"]")


def run_states():
    counts = "step steps updates evaluated best_step row rows source_examples source_tokens sum_steps sum_step_rows " \
             "sum_skipped_steps sum_tokens sum_label_tokens sum_slots sum_checkpoints"
    state = {"format": 1, "written_by": "liger-sft"}
    state.update({key: 2 for key in counts.split()})
    state.update({key: 0.5 for key in "epoch best_loss busy sum_first_loss sum_loss sum_eval_loss sum_seconds".split()})
    state.update(sum_save_seconds=None, source_data="0123456789abcdef", source_model="fedcba9876543210")
    log = [{"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2.25, "step": 1},
           {"epoch": 0.5, "eval_loss": 2.0, "eval_runtime": 0.125, "step": 1}]
    lines = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.25}\n{"step": 2, "eval_loss": 2.0}\n{"step": 3, "lo'
    both = dumps(state) + CUT + dumps({"log_history": log, "global_step": 2})
    seed("run_state", "one", both)
    seed("run_state", "lines", both + CUT + lines)
    seed("run_state", "not_finite", dumps(state) + CUT + dumps({"log_history": [{"epoch": None, "loss": None, "step": 1}]}))


def faults():
    """What every reader of JSON must refuse, in each target's own form."""
    begin = {"config": b"", "model_config": b"", "tokenizer": b"", "adapter": b"", "index": b"", "run_state": b"", "data": b"["}
    texts = {"nul_byte": b'{"model_type":"lla\0ma"}', "nul_escape": b'{"model_type":"lla\\u0000ma"}',
             "twice": b'{"r":1,"vocab":{},"r":2}', "deep_lists": b"[" * 3000, "deep_objects": b'{"a":' * 1500,
             "huge_number": b'{"seed":' + b"9" * 400 + b"}", "large_exponent": b'{"r":1e999999}',
             "not_utf8": b'{"model":"\xff\xfe"}', "half_escape": b'{"model":"\\u12', "trailing": b"{} {}"}
    for target, start in begin.items():
        for name, text in texts.items():
            put(target, name, start + text)
    for name, text in texts.items():
        put("safetensors", name, struct.pack("<Q", len(text)) + text)
    put("safetensors", "length_wraps", struct.pack("<Q", 2**64 - 8) + b"{}")
    header = {"x": {"dtype": "F32", "shape": [2**32, 2**32, 0], "data_offsets": [0, 0]}}
    put("safetensors", "shape_overflows", struct.pack("<Q", len(dumps(header))) + dumps(header))


def slow_tokenizers():
    """What took too long or too much memory once; test/unit/test_hostile.c has the long forms."""
    model = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    text = b"a" * 2000

    def sequence(key, inner, steps):
        return {"model": model, key: {"type": "Sequence", inner: steps}}

    def split(regex):
        return {"model": model, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"}}

    put("tokenizer", "grows_normalizer", dumps(sequence("normalizer", "normalizers", [double] * 60)) + CUT + text)
    put("tokenizer", "grows_decoder", dumps(sequence("decoder", "decoders", [double] * 60)) + CUT + text)
    put("tokenizer", "grows_byte_level", dumps(sequence("pre_tokenizer", "pretokenizers", [byte_level] * 60)) + CUT + text)
    put("tokenizer", "many_steps", dumps(sequence("normalizer", "normalizers", [{"type": "NFC"}] * 100)))
    put("tokenizer", "exponential", dumps(split("(a+)+[bc]")) + CUT + text)
    put("tokenizer", "quadratic", dumps(split("a*[bc]|a")) + CUT + text)
    put("tokenizer", "quadratic_backtracking", dumps(split("a*a*[bc]|a")) + CUT + text[:300])
    part = {"SpecialToken": {"id": "a", "type_id": 0}}
    post = {"type": "TemplateProcessing", "single": [part] * 50 + [{"Sequence": {"id": "A"}}],
            "special_tokens": {"a": {"ids": [0] * 50}}}
    put("tokenizer", "template_grows", dumps({"model": model, "post_processor": post}))
    marks = "a" + "\u0315" * 700 + "\u0316" * 700
    put("tokenizer", "marks_out_of_order", dumps({"model": model, "normalizer": {"type": "NFC"}}) + CUT + marks.encode())


for make in (faults, slow_tokenizers, tokenizers, weights, configs, adapters, rows, run_states):
    make()

#!/usr/bin/env python3
"""Golden ids of the chat formats, by transformers' apply_chat_template.

    make_chat_golden.py SHARED_FOLDER OUT.json

SHARED_FOLDER holds tokenizers/*.tar.xz and data/*.json.  OUT gets, for each (tokenizer, format): the ids of a few
conversations written out below, and for each data file the rows, tokens and an FNV-1a hash over the ids of all rows.
A format with no template in the shared tokenizers is given by a short one here.  A row whose answer begins with a line
end is left out where the template does not trim: there the header and the answer are tokenized apart on purpose.  So
is a row with the text of a control token in it: here it becomes the token, in our program it stays text.
"""
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from transformers import PreTrainedTokenizerFast

CHATML = ("{% for m in messages %}{% if loop.first and m.role != 'system' and default %}"
          "{{ '<|im_start|>system\\n' + default + '<|im_end|>\\n' }}{% endif %}"
          "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA31 = ("{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content | trim %}"
           "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}"
           "{{ '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n"
           "Today Date: 26 Jul 2024\\n\\n' + s + '<|eot_id|>' }}{% for m in rest %}"
           "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content + '\\n\\n' %}"
           "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}"
           "{% if m.role == 'user' %}{{ ' [INST] ' + (s if loop.first else '') + m.content + ' [/INST]' }}"
           "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}")
ALPACA = ("{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = messages[1:] %}"
          "{% else %}{{ 'Below is an instruction that describes a task. Write a response that appropriately completes the "
          "request.' }}{% set rest = messages %}{% endif %}{% for m in rest %}{% if m.role == 'user' %}"
          "{{ '\\n\\n### Instruction:\\n' + m.content + '\\n\\n### Response:\\n' }}"
          "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}")

# tokenizer, format, template (None: the tokenizer's own), variables of the template, whether it trims line ends
JOBS = [
    ("llama3", "llama3", None, {}, True),
    ("llama3.1", "llama3", None, {}, True),
    ("llama3.1", "llama3.1", LLAMA31, {}, True),
    ("qwen3", "qwen3", None, {"enable_thinking": False}, True),
    ("gemma3", "gemma", None, {}, True),
    ("mistral-v0.1", "mistral-v0.1", MISTRAL, {}, True),
    ("qwen3", "chatml", CHATML, {"default": ""}, False),
    ("qwen3", "smollm2", CHATML,
     {"default": "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}, False),
    ("qwen3", "qwen2", CHATML, {"default": "You are a helpful assistant."}, False),
    ("qwen3", "qwen", CHATML,
     {"default": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}, False),
    ("mistral-v0.1", "alpaca", ALPACA, {}, True),
    ("llama3.1", "alpaca", ALPACA, {}, False),
]
FILES = ["alpaca_en_demo.json", "alpaca_zh_demo.json", "identity.json", "kto_en_demo.json", "glaive_toolcall_en_demo.json"]


def turns(*texts, system=None):
    roles = ["user", "assistant"]
    head = [{"role": "system", "content": system}] if system is not None else []
    return head + [{"role": roles[i % 2], "content": t} for i, t in enumerate(texts)]


CONVERSATIONS = [
    turns("hi", "yo"),
    turns("hi", "yo", system="Answer in one word."),
    turns("  What is 2 + 2?\n", " 4 ", "你好，世界！", "世界你好 🦙", "def f():\n    return 1\n", "x\n\ny"),
    turns("a", "b", "c", "d", "e", "f", system=" Be brief.\n"),
    turns("q", "<think>\nwell\n</think>\n\nfirst", "r", "<think>\nhm, 7?\n</think>\n\nsecond"),
    turns("1234567 naïve café", "I'll HE'LL don’t"),
]
TOOLS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "I look."},
         {"role": "tool", "content": "{\"a\": 1}"}, {"role": "tool", "content": "second"},
         {"role": "assistant", "content": "one"}]


def to_messages(row):
    """A row as messages; None where src/data refuses it."""
    if "instruction" in row:
        query = row["instruction"] + ("\n" + row["input"] if row.get("input") else "")
        return turns(query, row["output"]) if query and row["output"] else None
    names = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
    list_ = row.get("messages") or row.get("conversations")
    out = [{"role": names.get(t.get("role", t.get("from"))), "content": t.get("content", t.get("value"))} for t in list_]
    order = all(m["role"] == ("user", "assistant")[i % 2] for i, m in enumerate(out))
    return out if order and len(out) % 2 == 0 and all(m["content"] for m in out if m["role"] == "assistant") else None


def fnv(hash_, ids):
    for i in ids:
        hash_ = ((hash_ ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return hash_


def open_tokenizer(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    text = lambda key: config[key]["content"] if isinstance(config.get(key), dict) else config.get(key)
    t = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token=text("bos_token"),
                                eos_token=text("eos_token"))
    t.chat_template = config.get("chat_template")
    return t


def render(t, template, variables, messages, prompt):
    ids = t.apply_chat_template(messages, chat_template=template, add_generation_prompt=prompt, tokenize=True,
                                return_dict=False, **variables)
    return list(ids)


def always_prompts(t, template):
    """The shared Llama-3 template ends with the header of an answer whether it is asked for or not."""
    own = template or t.chat_template
    return "assistant" in own and "add_generation_prompt" not in own and "[INST]" not in own and "###" not in own


def make(shared, tokenizers, job):
    name, form, template, variables, trims = job
    t = open_tokenizer(tokenizers / name)
    extra = len(t.encode("<|start_header_id|>assistant<|end_header_id|>\n\n", add_special_tokens=False)) \
        if always_prompts(t, template) else 0
    cut = lambda ids: ids[:len(ids) - extra]
    prompts = "add_generation_prompt" in (template or t.chat_template) or extra
    out = {"tokenizer": name, "format": form, "conversations": [], "files": []}
    for c in CONVERSATIONS + ([TOOLS] if form == "qwen3" else []):
        entry = {"messages": c, "ids": cut(render(t, template, variables, c, False))}
        if prompts:
            entry["prompt"] = render(t, template, variables, c[:-1], True)
        out["conversations"].append(entry)
    for file in FILES:
        hash_, tokens, rows, skipped = 0xCBF29CE484222325, 0, 0, []
        for i, row in enumerate(json.loads((shared / "data" / file).read_text()), 1):
            m = to_messages(row)
            if m is None:
                continue
            starts = not trims and any(a["content"].startswith("\n") for a in m if a["role"] == "assistant")
            if starts or any(s in a["content"] for a in m for s in t.all_special_tokens):
                skipped.append(i)
                continue
            ids = cut(render(t, template, variables, m, False))
            hash_, tokens, rows = fnv(fnv(hash_, ids), [0xFFFFFFFF]), tokens + len(ids), rows + 1
        out["files"].append({"file": file, "rows": rows, "tokens": tokens, "hash": f"{hash_:016x}", "skipped": skipped})
    return out


def main():
    shared, out = Path(sys.argv[1]), Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        for archive in sorted((shared / "tokenizers").glob("*.tar.xz")):
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")
        entries = [make(shared, Path(folder), job) for job in JOBS]
    lines = ",\n".join(json.dumps(e, ensure_ascii=False, separators=(",", ":")) for e in entries)
    out.write_text("[\n" + lines + "\n]\n")


if __name__ == "__main__":
    main()

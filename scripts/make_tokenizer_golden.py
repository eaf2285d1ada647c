#!/usr/bin/env python3
"""Golden values for test/unit/test_tokenizer.c, from Hugging Face's `tokenizers` library.

usage: make_tokenizer_golden.py SHARED_DIR        (SHARED_DIR/tokenizers/*.tar.xz, SHARED_DIR/data/*.json)

Writes below test/fixtures/tokenizers/:
  t*/tokenizer.json    the tiny tokenizers of the T cases
  features.json        one tiny tokenizer for each construct, and cases: text, its ids, with special tokens left as text,
                       with the post-processor's, decoded, decoded without special tokens (0: as the one before;
                       null: the library itself breaks)
  texts.json           odd texts, drawn from a pool with a fixed seed
  splits.json          well-known and odd pre-tokenizers, each with a hash of the pieces of the odd texts
  golden.txt           for each real tokenizer: hashes of the ids of every row of the data files, of the odd texts, and of
                       what ids decode to
A hash is FNV-1a (64 bits) over little-endian 32-bit ids, each text followed by -1, or over UTF-8 bytes; rows keep the
two halves xored.
"""
import json
import os
import random
import sys
import tarfile
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "test", "fixtures", "tokenizers")
REAL = ["llama3", "llama3.1", "qwen3", "gemma3", "mistral-v0.1"]
DATA = ["alpaca_en_demo", "alpaca_zh_demo", "identity", "dpo_en_demo", "dpo_zh_demo", "kto_en_demo",
        "glaive_toolcall_en_demo"]
MASK = (1 << 64) - 1


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h


def id_bytes(ids):
    return b"".join((i & 0xFFFFFFFF).to_bytes(4, "little") for i in ids + [-1])


def model(vocab, merges=(), **keys):
    base = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return dict(base, **keys, vocab={t: i for i, t in enumerate(vocab)}, merges=list(merges))


def added(first, *tokens):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return [dict(base, id=first + i, **t) for i, t in enumerate(tokens)]


def whole(m, **keys):
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None}
    return dict(base, **keys, model=m)


def bytes_vocab():
    return [f"<0x{b:02X}>" for b in range(256)]


# ---- the T cases ----
def t_cases():
    v = ["a", "b", "c", "ab", "abc", "bc"]
    yield "t01_true", whole(model(v, ["a b"], ignore_merges=True), pre_tokenizer={"type": "Whitespace"})
    yield "t01_false", whole(model(v, ["a b"]), pre_tokenizer={"type": "Whitespace"})
    absent = whole(model(v, ["a b"]), pre_tokenizer={"type": "Whitespace"})
    del absent["model"]["ignore_merges"]
    yield "t01_absent", absent
    yield "t02", whole(model(["a", " ", "b", "a ", "a b"], [["a", " "], ["a ", "b"]]))
    yield "t04", whole(model(["é", "e", "\u0301", "Å", "X", "Y"]), normalizer={"type": "NFC"},
                       added_tokens=added(6, {"content": "e\u0301X"}, {"content": "e\u0301Y", "normalized": True}))
    full = ["<unk>", "a", "b"] + bytes_vocab()
    holed = [t for t in full if t != "<0xA6>"]
    fall = {"unk_token": "<unk>", "byte_fallback": True}
    chain = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    yield "t05_full", whole(model(full, fuse_unk=True, **fall), decoder=chain)
    yield "t05_fused", whole(model(holed, fuse_unk=True, **fall), decoder=chain)
    yield "t05_apart", whole(model(holed, **fall), decoder=chain)
    yield "t05_silent", whole(model(["a", "b"]))
    flags = added(14, {"content": "<L>", "lstrip": True}, {"content": "<R>", "rstrip": True},
                  {"content": "<W>", "single_word": True}, {"content": "<x>"}, {"content": "<x>y"},
                  {"content": "ab", "single_word": True})
    yield "t06", whole(model(["a", "b", "c", " ", "<", ">", "L", "R", "W", "x", "y", "\t", "\n", "d"]),
                       added_tokens=flags)
    low = added(5, {"content": "<N>", "normalized": True}, {"content": "<M>"})
    yield "t06_lower", whole(model(["a", "b", "<", ">", "n"]), normalizer={"type": "Lowercase"}, added_tokens=low)
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}
    yield "t08", whole(model(["<s>", "a", "</s>"]), post_processor=post,
                       added_tokens=[added(0, {"content": "<s>", "special": True})[0],
                                     added(2, {"content": "</s>", "special": True})[0]])


# ---- one tiny tokenizer for each construct: all pairs of the alphabet merge, so that ids show where pieces end ----
def pairs(alphabet, **keys):
    return model(list(alphabet) + [a + b for a in alphabet for b in alphabet],
                 [[a, b] for a in alphabet for b in alphabet], **keys)


def byte_char(b):
    """GPT-2's character for a byte."""
    own = [c for c in range(256) if 33 <= c <= 126 or 161 <= c <= 172 or 174 <= c]
    return chr(b if b in own else 256 + [c for c in range(256) if c not in own].index(b))


def wide_model(**keys):
    """Bytes, and merges of random neighbours in Chinese text, whatever characters they cut."""
    draw = random.Random(7)
    row = [byte_char(b) for b in "中国中文字典中国人民国中典典人字民a中 国".encode()]
    vocab, merges = [byte_char(b) for b in range(256)], []
    for _ in range(36):
        i = draw.randrange(len(row) - 1)
        a, b = row[i:i + 2]
        if a + b not in vocab:
            vocab.append(a + b)
            merges.append([a, b])
        at = 0
        while at + 1 < len(row):
            if row[at] == a and row[at + 1] == b:
                row[at:at + 2] = [a + b]
            at += 1
    return model(vocab, merges, **keys)


def features():
    alphabet = "ab1 -\n▁é"
    for behavior in ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]:
        for invert in [False, True]:
            for pattern in [{"Regex": "-|1+"}, {"String": "-"}, {"Regex": "b*"}]:
                yield f"Split {behavior} {invert} {pattern}", whole(pairs("ab1-"), pre_tokenizer={
                    "type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
    for name, pre in {
            "Digits": {"type": "Digits", "individual_digits": False},
            "Digits each": {"type": "Digits", "individual_digits": True},
            "Whitespace": {"type": "Whitespace"}, "WhitespaceSplit": {"type": "WhitespaceSplit"},
            "Punctuation": {"type": "Punctuation", "behavior": "Isolated"},
            "Punctuation contiguous": {"type": "Punctuation", "behavior": "Contiguous"}}.items():
        yield name, whole(pairs(alphabet), pre_tokenizer=pre)
    mark = added(8 + 64, {"content": "<x>", "special": True}, {"content": "<n>", "normalized": True})
    for scheme in ["always", "first", "never"]:
        for split in [True, False]:
            yield f"Metaspace {scheme} {split}", whole(
                pairs(alphabet), added_tokens=mark,
                pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split},
                decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split})
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    plain = dict(level, add_prefix_space=False, use_regex=False)
    mapped = "ab1Ġ-ĊÃ©"
    yield "ByteLevel", whole(pairs(mapped), pre_tokenizer=level, decoder=level, added_tokens=mark)
    yield "ByteLevel plain", whole(pairs(mapped), pre_tokenizer=plain, decoder=plain)
    yield "ByteLevel unknown", whole(pairs("ab", unk_token="a"), pre_tokenizer=plain, decoder=plain)
    for whole_first in [False, True]:
        yield f"ByteLevel wide {whole_first}", whole(wide_model(ignore_merges=whole_first), pre_tokenizer=plain,
                                                     decoder=plain)
    for name, row in {"Digits, ByteLevel": [{"type": "Digits", "individual_digits": True},
                                            dict(level, add_prefix_space=False)],
                      "ByteLevel, Digits": [level, {"type": "Digits", "individual_digits": True}],
                      "ByteLevel twice": [plain, plain]}.items():
        yield name, whole(pairs(mapped), pre_tokenizer={"type": "Sequence", "pretokenizers": row})
    for name, normalizer in {
            "Lowercase": {"type": "Lowercase"}, "NFD": {"type": "NFD"}, "NFKC": {"type": "NFKC"},
            "NFKD": {"type": "NFKD"}, "Strip": {"type": "Strip", "strip_left": True, "strip_right": True},
            "Strip left": {"type": "Strip", "strip_left": True, "strip_right": False},
            "Replace regex": {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": "-"},
            "Replace string": {"type": "Replace", "pattern": {"String": "ab"}, "content": ""},
            "Prepend": {"type": "Prepend", "prepend": "▁"},
            "Sequence": {"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}}.items():
        yield name, whole(pairs("ab1 -▁é\u0301"), normalizer=normalizer, added_tokens=mark)
    unknown = ["<unk>", "a", "<0x7A>", "b"]
    for fuse in [True, False]:
        yield f"unknown before bytes {fuse}", whole(
            model(unknown, unk_token="<unk>", byte_fallback=True, fuse_unk=fuse), decoder={"type": "ByteFallback"})
    yield "overlap", whole(model(list("ab ")), added_tokens=added(
        3, {"content": "<R>", "rstrip": True}, {"content": " b"}, {"content": "  ", "rstrip": True, "lstrip": True}))
    yield "stop strip", whole(model(["▁", "a", "b"]), decoder={"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 2}]})
    single = [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
              {"SpecialToken": {"id": "e", "type_id": 0}}]
    post = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<x>": {"id": "<x>", "ids": [72, 1], "tokens": ["<x>", "b"]},
                               "e": {"id": "e", "ids": [73], "tokens": ["<n>"]}}}
    yield "template", whole(pairs(alphabet), added_tokens=mark, post_processor={
        "type": "Sequence", "processors": [level, post]})


FEATURE_TEXTS = ["", "a", "ab", "a-b", "--", "-a", "a-", "a--b-", "11a1b-11", "bab-bb", "a b", "  a  b ", "a 1-1 b\n\na",
                 "▁a▁▁b", "é1é", "e\u0301a", "ab\u00a0b\u3000a", "AB É", "a<x>b", "<x>a b<x> a", "a<n>b", "<n>b", "a <R>  b b",
                 "ayzb", "yyzzy", "ﬁ½²", "\ta\r\nb", "-1-", "b'lla 's", "1²³a", "   ", "a    b",
                 "中国中文", "国中中国人字典民", "文a中b国 中典典人字民", "人人🦙中国民国"]


def write(name, value):
    path = os.path.join(OUT, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")


def decode(tk, spec, ids, skip):
    """None where the library itself breaks (Strip of more characters than there are), or prints an added token not as
    the file has it but normalised (0.23), after which it takes no such token for special."""
    odd = {t["id"] for t in spec["added_tokens"] if t["normalized"]} if spec["normalizer"] else set()
    if odd & set(ids):
        return None
    try:
        return tk.decode(ids, skip_special_tokens=skip)
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        return None


def make_features():
    out = []
    for name, spec in features():
        tk = Tokenizer.from_str(json.dumps(spec))
        cases = []
        for text in FEATURE_TEXTS:
            tk.encode_special_tokens = True
            plain = tk.encode(text, add_special_tokens=False).ids
            tk.encode_special_tokens = False
            ids = tk.encode(text, add_special_tokens=False).ids
            whole_ids, full, short = tk.encode(text).ids, decode(tk, spec, ids, False), decode(tk, spec, ids, True)
            cases.append([text, ids, 0 if plain == ids else plain, 0 if whole_ids == ids else whole_ids, full,
                          0 if short == full else short])
        out.append({"name": name, "tokenizer": spec, "cases": cases})
    write("features.json", out)


# ---- odd texts ----
POOL = list("abcABCxyz '  \n\r\t0123456789.,!?-<>|_/\\\"") + [
    "'s", "'LL", "'ſ", "<|im_end|>", "<|eot_id|>", "<s>", "</s>", "<bos>", "<think>", "<0x41>", "▁", "▁▁", "\n\n", "   ",
    "é", "e\u0301", "각", "\u1112\u1161\u11ab", "🦙", "👨\u200d👩\u200d👧", "中", "文", "字", "你好", "の", "ガ", "か\u3099",
    "अ", "मराठी", "٣", "½", "²", "\u200b", "\u200d", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "ß", "ﬁ", "Å",
    "\u212b", "A\u030a", "\ufeff", "İ", "\u0344", "\u0958", "\u2126", "<unused1>", "<table>", "<start_of_turn>", "\u11a7"]


def odd_texts():
    draw = random.Random(5)
    texts = ["".join(draw.choice(POOL) for _ in range(draw.randint(1, 30))) for _ in range(300)]
    return texts + ["".join(draw.choice(POOL) for _ in range(2000))]


# ---- splitters of well-known tokenizers, and expressions that Oniguruma and PCRE2 read differently ----
def splits():
    def split(regex, behavior="Isolated", invert=False):
        return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}

    def row(*steps):
        return {"type": "Sequence", "pretokenizers": list(steps)}

    words = "[^\\r\\n\\p{L}\\p{N}]?"
    upper, lower = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
    short, blanks = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "\\s+(?!\\S)|\\s+"
    signs = " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
    o200k = f"{words}{upper}*{lower}+{short}?|{words}{upper}+{lower}*{short}?|\\p{{N}}{{1,3}}|{signs}{blanks}"
    yield "o200k", split(o200k)
    yield "o200k removed", split(o200k, "Removed", True)
    yield "cl100k", split(f"{short}|{words}+\\p{{L}}+|\\p{{N}}{{1,3}}| ?[^\\s\\p{{L}}\\p{{N}}]++[\\r\\n]*|"
                          f"\\s*[\\r\\n]|{blanks}")
    yield "deepseek-v3", row(
        split("\\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
        split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
              " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|" + blanks))
    yield "deepseek-coder", row(split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"),
                                split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True})
    yield "falcon", row({"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Digits", "individual_digits": False},
                      split("[0-9]{3}"))
    yield "scripts", split("[\\p{Han}\\p{Hiragana}]+|\\p{^L}|\\P{Latin}")
    yield "look around", split("(?<=\\d)(?=(?:\\d{3})+(?!\\d))|^\\w|\\w$|\\W\\h{,2}x")
    yield "lines", split("^.|.$|\\v", "MergedWithNext")
    yield "words", split("\\w+", "MergedWithPrevious")
    yield "not space", split("[^\\S\\n]+|\\S{2,}", "Contiguous")
    yield "rust words", {"type": "Whitespace"}
    yield "punctuation", {"type": "Punctuation", "behavior": "MergedWithNext"}


def make_splits(texts):
    out = []
    for name, spec in splits():
        base = whole(model(["a"]), pre_tokenizer=spec)
        tk = Tokenizer.from_str(json.dumps(base))
        h = fnv(b"")
        for text in texts:
            h = fnv(b"".join(piece.encode() + b"\0" for piece, _ in tk.pre_tokenizer.pre_tokenize_str(text)) + b"\0", h)
        out.append({"name": name, "pre_tokenizer": spec, "hash": f"{h:016x}"})
    write("splits.json", out)


def strings(value):
    if isinstance(value, str):
        yield value
    for v in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from strings(v)


# ---- SplitMix64, as base/rng.h ----
def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def wild_ids(size):
    """300 rows of up to 32 ids: broken characters, special tokens, bytes."""
    for row in range(300):
        draw = [mix((row + k * 0xD1342543DE82EF95) & MASK) for k in range(33)]
        yield [(d >> 8) % (size if d & 1 else min(size, 512)) for d in draw[1:1 + draw[0] % 33]]


def golden(name, tk, data, texts, out):
    size = max(tk.get_vocab(with_added_tokens=True).values()) + 1
    decoded = {False: fnv(b""), True: fnv(b"")}
    for ids in wild_ids(size):
        for skip in decoded:
            decoded[skip] = fnv(tk.decode(ids, skip_special_tokens=skip).encode() + b"\0", decoded[skip])
    odd = {}
    for plain in [False, True]:
        tk.encode_special_tokens = plain
        odd[plain] = fnv(b"".join(id_bytes(tk.encode(t, add_special_tokens=False).ids) for t in texts))
    tk.encode_special_tokens = False
    out.append(f"tokenizer {name} size {size} wild {decoded[False]:016x} {decoded[True]:016x} "
               f"odd {odd[False]:016x} {odd[True]:016x}")
    for file, rows in data.items():
        back, hashes, count = fnv(b""), [], 0
        for row in rows:
            h = fnv(b"")
            for text in strings(row):
                ids = tk.encode(text, add_special_tokens=False).ids
                count += len(ids)
                h = fnv(id_bytes(ids), h)
                back = fnv(tk.decode(ids, skip_special_tokens=False).encode() + b"\0", back)
            hashes.append(f"{(h ^ h >> 32) & 0xFFFFFFFF:08x}")
        out.append(f"file {file} rows {len(rows)} ids {count} decoded {back:016x}")
        out += [" ".join(hashes[i:i + 13]) for i in range(0, len(hashes), 13)]


def main():
    shared = sys.argv[1]
    for name, spec in t_cases():
        Tokenizer.from_str(json.dumps(spec))
        write(f"{name}/tokenizer.json", json.dumps(spec, ensure_ascii=True, indent=1) + "\n")
    make_features()
    texts = odd_texts()
    write("texts.json", texts)
    make_splits(texts)
    data = {f: json.load(open(os.path.join(shared, "data", f + ".json"), encoding="utf-8")) for f in DATA}
    out = [f"# made by scripts/make_tokenizer_golden.py with tokenizers {tokenizers.__version__}"]
    with tempfile.TemporaryDirectory() as folder:
        for name in REAL:
            tarfile.open(os.path.join(shared, "tokenizers", name + ".tar.xz")).extractall(folder, filter="data")
            golden(name, Tokenizer.from_file(os.path.join(folder, name, "tokenizer.json")), data, texts, out)
    write("golden.txt", "\n".join(out) + "\n")


main()

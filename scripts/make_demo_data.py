#!/usr/bin/env python3
"""Writes the text of the demo: what the demo model is pretrained on, and the rows that `make demo` tunes it with.

    make_demo_data.py pretrain OUT.jsonl [CONVERSATIONS]   conversations about invented people (not in the repository)
    make_demo_data.py tune DATA_FOLDER                      demo_train.json and demo_test.json (in the repository)

Every row is about a person put together from lists: first name, family name, town, job, age.  One first name in eight,
one family name in eight and one town in eight stand in demo_test.json alone: demo_train.json never has them, so that a
right answer there was read out of the question and not remembered from the tuning.  The pretraining text has all names.
It answers in English and holds no tables; writing the facts as a Markdown table is what the tuning teaches.  The same
arguments give the same bytes.
"""
import json
import random
import sys

HE = ("Adam Albert Arthur Ben Carl Colin David Edgar Eric Felix Frank George Harry Hugo Ivan Jack Keith Leo Louis "
      "Mark Milo Ned Oscar Otto Paul Peter Ralph Simon Thomas Victor Walter Will").split()
SHE = ("Ada Agnes Alice Anna Bella Clara Daisy Dora Edith Ella Eva Flora Grace Hanna Helen Ida Iris Jane Julia "
       "Karen Laura Linda Lucy Mabel Maria Nora Olga Polly Rosa Ruth Sara Vera").split()
LAST = ("Abbott Adler Ames Archer Barnes Becker Bishop Blake Bradley Brooks Burton Carver Chase Cole Craig Curtis "
        "Dalton Davis Dixon Doyle Duncan Ellis Evans Fleming Foster Frost Gibson Grant Griffin Hale Hansen Harris "
        "Hicks Hughes Irwin Jensen Keller Knight Larsen Lewis Logan Marsh Morgan Murphy Nelson Norris Olsen "
        "Parker Pierce Quinn Ramsey Reed Rhodes Riley Shaw Stone Swift Todd Vance Walsh Webb Wilson Woods Young").split()
TOWN = ("Ashford Barrow Bath Bedford Bolton Bristol Cambridge Chester Cork Derby Dover Dublin Durham Ely Exeter "
        "Galway Halifax Hull Kendal Leeds Lincoln London Ludlow Luton Newport Norwich Oldham Oxford Perth Poole "
        "Ripon Rugby Selby Stafford Swansea Taunton Truro Wells Whitby Windsor").split()
JOBS = ("baker smith teacher sailor farmer painter doctor weaver miller gardener lawyer driver singer tailor "
        "potter nurse clerk hunter mason brewer cook guard pilot judge writer dancer barber printer glazier vet "
        "porter cooper").split()
DRINKS = "tea coffee milk cider water lemonade cocoa juice".split()
COLOURS = "red green blue yellow white black brown purple orange grey".split()
PETS = "cat dog hen goat parrot rabbit pony tortoise".split()
THINGS = "lamp chair clock spoon kettle coat boot basket ladder rope candle drum letter mirror barrel bell".split()
WEATHER = ["It rained all week.", "The market opens at eight.", "The harvest was good.", "The bridge was mended in May.",
           "Nobody knows why the bell rang.", "The road is long.", "There was a fair on Sunday.", "The river froze early."]


def pick(r, names, part):
    """One of the names: "all", or those for demo_train.json ("train") or demo_test.json ("test") alone."""
    while True:
        i = r.randrange(len(names))
        if part == "all" or (i % 8 == 5) == (part == "test"):
            return names[i]


class Person:
    def __init__(self, r, part="all"):
        self.he, names = r.choice([("He", HE), ("She", SHE)])
        self.first = pick(r, names, part)
        self.last = pick(r, LAST, part)
        self.town = pick(r, TOWN, part)
        self.name = self.first + " " + self.last
        self.age = r.randint(11, 99)
        self.job = r.choice(JOBS)
        self.drink = r.choice(DRINKS)
        self.colour = r.choice(COLOURS)
        self.pet = r.choice(PETS)


def with_article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


FACTS = {
    "age": ["{s} is {age} years old.", "{s} turned {age} this year.", "{s} has seen {age} winters.",
            "{s} is now {age}."],
    "job": ["{s} works as {a_job}.", "{s} is {a_job} by trade.", "{s} has been {a_job} for years.",
            "{s} earns a living as {a_job}."],
    "town": ["{s} lives in {town}.", "{s} has a house in {town}.", "{s} moved to {town} long ago.",
             "{s} was born in {town} and stayed there."],
    "drink": ["{s} likes {drink}.", "{s} drinks {drink} every morning."],
    "colour": ["{s} wears a {colour} hat.", "{s} painted the door {colour}."],
    "pet": ["{s} keeps a {pet}.", "{s} has a {pet}."],
}
MAIN = ["age", "job", "town"]
SIDE = ["drink", "colour", "pet"]
ASK = {
    "name": ["What is the name?", "Who is this about?"],
    "age": ["How old is {first}?", "What is the age of {first}?"],
    "job": ["What does {first} do for a living?", "What is the job of {first}?"],
    "town": ["Where does {first} live?", "What is the town of {first}?"],
    "drink": ["What does {first} drink?"],
    "colour": ["Which colour does {first} like?"],
    "pet": ["Which animal does {first} have?"],
}
ANSWER = {
    "name": "The name is {name}.",
    "age": "{first} is {age} years old.",
    "job": "{first} is {a_job}.",
    "town": "{first} lives in {town}.",
    "drink": "{first} drinks {drink}.",
    "colour": "{first} likes {colour}.",
    "pet": "{first} has a {pet}.",
}


def fill(pattern, p, s=""):
    return pattern.format(s=s, name=p.name, first=p.first, age=p.age, job=p.job, a_job=with_article(p.job),
                          town=p.town, drink=p.drink, colour=p.colour, pet=p.pet)


def story(r, p, n_side):
    """Sentences about p in any order: the first names the person in full, later ones by pronoun or first name."""
    kinds = MAIN + r.sample(SIDE, n_side)
    r.shuffle(kinds)
    out = []
    for i, kind in enumerate(kinds):
        s = p.name if i == 0 else r.choice([p.he, p.he, p.first])
        out.append(fill(r.choice(FACTS[kind]), p, s))
    if r.random() < 0.3:
        out.insert(r.randint(1, len(out)), r.choice(WEATHER))
    return " ".join(out), kinds


SUMMARIES = [
    ("Say it in one sentence.", "{name} is {age} years old, works as {a_job} and lives in {town}."),
    ("Give me the short form.", "{name}, {age}, {job}, {town}."),
    ("Who lives where?", "{name} lives in {town}."),
    ("Quote the name.", '"{name}"'),
    ("Quote the job.", '"{job}"'),
    ("Quote the town.", '"{town}"'),
    ("Write a list.", "name: {name}\nage: {age}\njob: {job}\ntown: {town}"),
    ("Write the list from the end.", "town: {town}\njob: {job}\nage: {age}\nname: {name}"),
    ("Introduce yourself as this person.", "Hello, I am {name}, {a_job} from {town}, and I am {age}."),
]


def questions(r, p, kinds, n):
    turns = []
    for kind in r.sample(kinds + ["name"], min(n, len(kinds) + 1)):
        turns.append((fill(r.choice(ASK[kind]), p), fill(ANSWER[kind], p)))
    return turns


def talk_person(r):
    p = Person(r)
    text, kinds = story(r, p, r.randint(0, 1))
    turns = questions(r, p, kinds, r.randint(1, 4))
    for ask, answer in r.sample(SUMMARIES, r.randint(1, 3)):
        turns.append((ask, fill(answer, p)))
    r.shuffle(turns)
    ask, answer = turns[0]
    turns[0] = (ask + "\n" + text, answer) if r.random() < 0.5 else (text + "\n" + ask, answer)
    return turns


def talk_two(r):
    p, q = Person(r), Person(r)
    kind = r.choice(MAIN)
    text = fill(r.choice(FACTS[kind]), p, p.name) + " " + fill(r.choice(FACTS[kind]), q, q.name)
    turns = [(fill(r.choice(ASK[kind]), x), fill(ANSWER[kind], x)) for x in (p, q)]
    r.shuffle(turns)
    turns[0] = (text + "\n" + turns[0][0], turns[0][1])
    return turns


def any_word(r):
    return r.choice(r.choice([THINGS, JOBS, DRINKS, COLOURS, PETS, TOWN, HE, SHE, LAST, ["name", "age", "job", "town"], [str(r.randint(0, 99))]]))


MARKS = ["|", "|", "---", "---|", "---|---|", "|---|", '"', "'", "{", "}", "[", "]", "(", ")", ":", ",", ";", "=", "-", "/", "*", "_", "<", ">", "+", '":', '",', '{"', '"}']


def talk_words(r):
    """Copying, quoting, first and last: words and marks in any order."""
    words = [any_word(r) for _ in range(r.randint(2, 5))]
    turns = [("First word: " + " ".join(words), words[0]), ("Last word: " + " ".join(words), words[-1]),
             ("Put commas between: " + " ".join(words), ", ".join(words)),
             ("Put bars between: " + " ".join(words), " | ".join(words)),
             ("Put in bars: " + " ".join(words), "| " + " | ".join(words) + " |"),
             ("Put in quotes: " + words[0], '"' + words[0] + '"'),
             ("Put in brackets: " + words[0], "[" + words[0] + "]"),
             ("Put in braces: " + words[0], "{" + words[0] + "}")]
    for i in range(r.randint(1, 3)):
        words.insert(r.randint(0, len(words)), r.choice(MARKS))
    text = "".join(w + r.choice([" ", " ", ""]) for w in words).strip()
    turns.append(("Repeat: " + text, text))
    turns.append(("Repeat: " + text, text))
    return r.sample(turns, 2)


def talk_small(r):
    a, b = r.randint(0, 99), r.randint(0, 99)
    thing = r.choice(THINGS)
    return r.sample([(f"What is larger, {a} or {b}?", f"{max(a, b)}." if a != b else "They are equal."),
                     (f"Spell {thing}.", " ".join(thing))], 1)


def write_pretrain(path, count):
    r = random.Random(1)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            kind = r.random()
            turns = (talk_person if kind < 0.76 else talk_two if kind < 0.86 else talk_words if kind < 0.98
                     else talk_small)(r)
            messages = []
            for ask, answer in turns:
                messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
            out.write(json.dumps({"messages": messages}) + "\n")


def tune_row(r, part):
    p = Person(r, part)
    text, _ = story(r, p, r.randint(0, 1))
    table = f"| name | age | job | town |\n|---|---|---|---|\n| {p.name} | {p.age} | {p.job} | {p.town} |"
    return {"instruction": "Write the facts as a table.", "input": text, "output": table}


def write_tune(folder, n_train=1000, n_test=200):
    for name, seed, n, part in (("demo_train.json", 2, n_train, "train"), ("demo_test.json", 3, n_test, "test")):
        r = random.Random(seed)
        with open(folder + "/" + name, "w", encoding="utf-8") as out:
            json.dump([tune_row(r, part) for _ in range(n)], out, indent=1)
            out.write("\n")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "tune":
        write_tune(sys.argv[2])
    elif len(sys.argv) in (3, 4) and sys.argv[1] == "pretrain":
        write_pretrain(sys.argv[2], int(sys.argv[3]) if len(sys.argv) == 4 else 40000)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()

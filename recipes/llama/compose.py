"""Writes `corpus/days.txt`: short plain stories put together from sentences written for this model.

`harbour.txt` and `machines.txt` are written by hand. They are too few to learn a language from, so this
script adds stories in which the same people, boats and machines meet again in another order:

    python -m recipes.llama.compose
"""

import random
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
SEED = 7
COUNTS = {"logs": 48, "errands": 64, "sums": 30, "repairs": 32}

PEOPLE = {
    "Ada": ("the harbour master", "she"),
    "Tom": ("the baker", "he"),
    "Ines": ("the ferry captain", "she"),
    "Pell": ("the lighthouse keeper", "he"),
    "Marta": ("the net mender", "she"),
    "Wen": ("the gardener", "she"),
    "Nia": ("the girl who builds boats", "she"),
    "Olaf": ("the boat builder", "he"),
}
BOATS = [
    "the Kittiwake",
    "the Blue Heron",
    "the Patience",
    "the Morning Star",
    "the Otter",
    "the Little Wave",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
CARGO = ["salt and rope", "herring", "apples", "timber", "letters", "oil for the lamp", "flour", "two goats"]
WEATHER = [
    ("The sea was calm", "the boats went out early"),
    ("The wind came from the west", "the gulls stayed near the shore"),
    ("There was fog in the bay", "the dog barked from the end of the pier"),
    ("It rained all day", "the children drew boats in school"),
    ("The waves were high", "the brass bell rang by itself"),
    ("The sky was clear", "the old people sat on the wall in the sun"),
    ("Snow lay on the pier", "the ferry carried blankets and soup"),
]
HOURS = ["six", "seven", "eight", "nine", "ten", "eleven"]
NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]

LOG_ENDINGS = [
    "Ada wrote it down in the red notebook, so that it would not be forgotten.",
    "In the evening the lamp was lit, and all the boats were home.",
    "Nothing else happened, and nobody was sorry about it.",
    "Bruno the dog slept on the old sails and heard nothing of it.",
    "The bread was ready when they landed.",
    "Pell saw it all from the lighthouse and was content.",
]

# What somebody needs, why, who has it, and what happens then.
NEEDS = [
    ("a long rope", "because a storm was coming", "Marta",
     "The rope was too short, so they tied two ropes together with a good knot."),
    ("a cup of oil", "because the lamp had to burn until morning", "Pell",
     "The cup was filled to the brim, and not a drop was spilled on the way."),
    ("a loaf of bread", "because a guest was expected", "Tom",
     "The bread was still warm, and half of it was gone before the corner."),
    ("a strong plank", "because the old one was broken", "Olaf",
     "The plank was of oak, and it took two people to carry it."),
    ("a basket of beans", "because the market was on the next day", "Wen",
     "The beans were green and long, and the basket was heavy."),
    ("a seat on the ferry", "because a friend lived on the far side", "Ines",
     "The water was smooth, and the far side came slowly nearer."),
    ("a page from the notebook", "because a letter had to be written", "Ada",
     "The page was thin and red at the edge, and nothing was written on it yet."),
    ("a small wooden boat", "because it was a birthday", "Nia",
     "The boat leaned a little to one side, but it did not sink."),
]  # fmt: skip
THANKS = [
    "To say thank you, {who} swept the floor.",
    "To say thank you, {who} sang a song about the sea.",
    "To say thank you, {who} promised to come again on Sunday.",
    "To say thank you, {who} left a plum cake at the door.",
]
ENDINGS = [
    "Then they sat on the pier and watched the boats come home.",
    "Nobody in Saltmere thought that this was strange.",
    "Ada wrote it down in the red notebook, so that it would not be forgotten.",
    "The dog Bruno came along and was given his share.",
    "After that they were good friends, and they still are.",
]

# A thing that broke, what was tried first, and what helped: told of the harbour and of a machine alike.
REPAIRS = [
    ("the pump would not start", "kicked the pump", "cleaned the filter", "the water ran again"),
    ("the model gave the wrong answer", "trained it again", "compared it layer by layer",
     "the fault was found"),
    ("the first step was slow", "bought a larger machine", "kept the compiled program",
     "the next day it was fast"),
    ("the boat took on water", "bailed it out", "looked for the hole", "the boat stayed dry"),
    ("the memory of the chip was full", "made the batch smaller", "shared the weights among four chips",
     "every piece found its place"),
    ("the clock ran too fast", "held the hands still", "made the weight a little lighter",
     "it kept the time"),
    ("every step was compiled again", "waited for it to end", "gave the cache a fixed length",
     "the program was compiled once"),
    ("the net let the fish go", "pulled it in faster", "looked at each knot twice", "the net was full"),
    ("the lamp gave no light", "wiped the glass", "filled it with oil", "the boats could see the rock"),
    ("the machine waited after every token", "asked it to hurry", "put the whole loop on the device",
     "the words came without a pause"),
]  # fmt: skip
LESSONS = [
    "First find the reason, and then reach for the tool",
    "It is good to look before you push",
    "A small change in the right place is enough",
    "What you have understood once you need not repair twice",
]

QUESTIONS = [
    ("What is a mesh", "A mesh is an arrangement of chips whose axes have names"),
    ("What is a token", "A token is a small number that stands for a piece of text"),
    ("What is a cache", "A cache keeps the keys and the values of the tokens that came before"),
    ("What is a weight", "A weight is a number that the model has learned"),
    ("What is a checkpoint", "A checkpoint is a model that has been written to a disk"),
    ("What is a compiler", "A compiler turns a whole program into steps that the chip can run"),
    ("What is a trace", "A trace is a recording of the operations of a function"),
    ("What is a shape", "A shape says how long a tensor is along each of its axes"),
    ("What is a tensor", "A tensor is a block of numbers with a shape"),
    ("What is a mask", "A mask says which tokens must not be looked at"),
    ("What is padding", "Padding fills a short row so that all rows have the same length"),
    ("What is a batch", "A batch is a number of prompts that are answered together"),
    ("What is sharding", "Sharding is the way in which a tensor is cut into pieces, one for each chip"),
    ("What is prefill", "Prefill is the first step, in which the whole prompt is read at once"),
    ("What is decoding", "Decoding is the loop in which one token is made after another"),
    ("What is a port", "A port is a model that has been carried to another machine and still says the same"),
    ("What is an all-reduce", "An all-reduce adds up the pieces of all chips and gives each of them the sum"),
    ("What is a matrix unit", "A matrix unit is the part of the chip that multiplies matrices"),
    ("What is greedy decoding", "Greedy decoding always takes the token with the highest score"),
    ("What is the temperature", "The temperature makes the choice of the next token bold or careful"),
    ("Where is Saltmere", "Saltmere lies where the river meets the sea"),
    ("Who keeps the lamp", "Old Pell keeps the lamp in the lighthouse on the rock"),
    ("Who bakes the bread", "Tom bakes the bread, and his oven is hot at four o'clock"),
    ("Who mends the nets", "Marta mends the nets by the wall where the sun is"),
    ("Who rings the bell", "Nobody rings the bell, because it rings by itself when the waves are high"),
    ("Who builds the boats", "Olaf builds the large boats, and Nia builds the small ones"),
    (
        "Who writes in the red notebook",
        "Ada writes down every boat that comes in and every boat that goes out",
    ),
    ("Which boat goes first", "The boat that is coming home goes first, because it is tired"),
]


def introduced(name: str) -> str:
    """The name with its trade, as in `Tom, the baker,`."""
    return f"{name}, {PEOPLE[name][0]},"


def capital(sentence: str) -> str:
    """The sentence with its first letter in upper case."""
    return sentence[0].upper() + sentence[1:]


def log(rng: random.Random) -> str:
    """One day as the harbour master sees it."""
    boat, other = rng.sample(BOATS, 2)
    weather, then = rng.choice(WEATHER)
    landed, loaded = rng.sample(CARGO, 2)
    came, went = sorted(rng.sample(range(len(HOURS)), 2))
    return (
        f"On {rng.choice(DAYS)} {boat} came in at {HOURS[came]} with {landed}. {weather}, and {then}. "
        f"At {HOURS[went]} {other} went out with {loaded}. {rng.choice(LOG_ENDINGS)}"
    )


def errand(rng: random.Random) -> str:
    """Somebody needs something, asks the one who has it, and gives thanks."""
    thing, reason, owner, detail = rng.choice(NEEDS)
    who = rng.choice([name for name in PEOPLE if name != owner])
    opening = rng.choice(["One morning", "One evening", "One day in spring", "One day in autumn"])
    thanks = rng.choice(THANKS).format(who=who)
    return (
        f"{opening} {introduced(who)} needed {thing}, {reason}. "
        f"{capital(PEOPLE[who][1])} went to {owner} and asked, "
        f'"Have you got {thing}?" "Yes," said {owner}, "come in." {detail} {thanks} {rng.choice(ENDINGS)}'
    )


def total(rng: random.Random) -> str:
    """A small sum, counted at the harbour."""
    first, second = rng.randint(1, 6), rng.randint(1, 6)
    name = rng.choice(list(PEOPLE))
    things = rng.choice(["boats", "shells", "gulls", "nets", "letters", "baskets", "lamps"])
    places = rng.sample(["on the pier", "in the bay", "by the wall", "on the quay", "in the shed"], 2)
    return (
        f"{name} counted the {things}. "
        f"There {count(first, things)} {places[0]} and {NUMBERS[second]} {places[1]}. "
        f'"{capital(NUMBERS[first])} and {NUMBERS[second]} is {NUMBERS[first + second]}," said {name}, '
        f"and wrote down the number {NUMBERS[first + second]}."
    )


def count(number: int, things: str) -> str:
    """`was one boat` or `were three boats`."""
    return f"was one {things.removesuffix('s')}" if number == 1 else f"were {NUMBERS[number]} {things}"


def repair(rng: random.Random) -> str:
    """Something breaks, the first attempt fails, and the second one helps."""
    broken, first, second, result = rng.choice(REPAIRS)
    name, friend = rng.sample(list(PEOPLE), 2)
    return (
        f"{capital(broken)}. {name} {first}, but that did not help. "
        f"Then {introduced(friend)} came and {second}, "
        f'and {result}. "{rng.choice(LESSONS)}," said {friend}.'
    )


def questions(rng: random.Random) -> list[str]:
    """Every question with its answer alone, and lessons of three questions each."""
    alone = [f"{question}? {answer}." for question, answer in QUESTIONS]
    order = rng.sample(QUESTIONS, len(QUESTIONS))
    lessons = [order[start : start + 3] for start in range(0, len(order) - 2, 3)]
    told = [
        " ".join(f'"{question}?" asked Nia. "{answer}," said {name}.' for question, answer in lesson)
        for lesson in lessons
        for name in [rng.choice([person for person in PEOPLE if person != "Nia"])]
    ]
    return alone + told


def compose(seed: int = SEED) -> list[str]:
    """All stories of `days.txt`, shuffled, without repetition."""
    rng = random.Random(seed)
    kinds = [(log, "logs"), (errand, "errands"), (total, "sums"), (repair, "repairs")]
    stories = [write(rng) for write, kind in kinds for _ in range(COUNTS[kind])]
    stories += questions(rng)
    stories = list(dict.fromkeys(stories))
    rng.shuffle(stories)
    return stories


def main() -> None:
    """Write the file that `train.py` reads."""
    (CORPUS / "days.txt").write_text("\n\n".join(compose()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

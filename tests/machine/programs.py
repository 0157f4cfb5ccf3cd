"""Programs: what is done to the tables of an example, one step after the other.

A program is made of a number, always the same of the same one. Numbers in a step mean what the state at that moment
makes of them (of five columns, the seventh is the second), so that any part of a program is one, too: `shortest` leaves
steps out as long as what is left still fails.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

# How often, against the others. Each program takes some of them three times as often and leaves others out: what needs
# three merges in a row would never be seen otherwise.
WEIGHTS: Final = {
    "insert_few": 6,
    "insert_many": 6,
    "delete": 6,
    "update": 3,
    "transaction": 3,
    "add_column": 2,
    "alter_column": 3,
    "partition": 2,
    "sort": 1,
    "rename": 1,
    "comment": 1,
    "limit": 1,
    "recreate": 1,
    "upgrade": 1,
    "pack": 1,
    "trickle": 1,
    "merge": 4,
    "flush": 4,
    "rewrite": 2,
    "expire": 4,
    "clean_up": 1,
    "load": 8,
    "look": 1,
    "forget": 1,
}
FACTORS: Final = (0, 1, 1, 1, 3)
# what every program may do
ALWAYS: Final = ("insert_few", "insert_many", "delete", "load")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    table: int
    numbers: tuple[int, int, int]


Program = Sequence[Step]


def program(seed: int, length: int, usual: Mapping[str, int] = WEIGHTS) -> Program:
    random = Random(seed)
    weights = {name: weight * random.choice(FACTORS) for name, weight in usual.items()}
    weights |= {name: weights[name] or usual[name] for name in ALWAYS}
    names = random.choices(list(weights), list(weights.values()), k=length)
    numbers = [(random.randrange(1000), random.randrange(1000), random.randrange(1000)) for _ in names]
    tables = [random.choice((0, 0, 0, 1)) for _ in names]
    return [Step(*step) for step in zip(names, tables, numbers, strict=True)]


def shortest(failing: Program, fails: Callable[[Program], bool], tries: int) -> Program:
    """A part of the program that fails as well and, if there are tries enough, of which every step is needed."""
    size = max(1, len(failing) // 2)
    while True:
        for start in range(len(failing) - size, -1, -size):
            if tries == 0:
                return failing
            tries -= 1
            rest = [*failing[:start], *failing[start + size :]]
            if fails(rest):
                failing = rest
        if size == 1:
            return failing
        size //= 2

"""A fuzz target: whatever stands in a config.json gives a cost or one line of text, in bounded time and memory.

    python tests/fuzz_configuration.py [SECONDS] [SEED]

`target` takes bytes, as fuzzing engines give them (atheris.Setup(sys.argv, target)). Run alone, this file makes bytes
of its own: the presets' configurations with keys of all families changed, cut, doubled, nested and mistyped. It prints
what it did, and the bytes of the first input that breaks the rule.
"""

import io
import json
import random
import resource
import sys
import time

import learncost as lc
from learncost.models.argument import presets
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES

MOST_SECONDS = 20.0
MOST_MEMORY = 2 * 2**30


def target(data: bytes) -> str:
    """The total of a step, or the line that says what is wrong; anything else that happens is a fault."""
    start = time.process_time()
    text = data.decode("utf-8", errors="replace")
    try:
        configuration = configure("-", stdin=io.StringIO(text))
        message = str(
            lc.cost(configuration, seq_len=None if configuration.sizes.get("max_position_embeddings") else 8).total
        )
    except lc.InputError as error:
        message = str(error)
        assert message.isprintable(), repr(message)
        assert len(message) < 3000, message
    seconds = time.process_time() - start
    assert seconds < MOST_SECONDS, f"{seconds:.1f} seconds"
    return message


ODD = (
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 1e3, 0.5, 10**12, 10**13, 10**40, -0.0, "", "a", "1", "gelu", [], {}, [1],
    ["full_attention"], ["sliding_attention", "full_attention"], [[["global", "local"], 6]], [[["global"], 10**9]],
    [[]], {"a": 1}, {"model_type": "llama"}, "é\n", "\x00",
)  # fmt: skip


def keys_of(family: str) -> list[str]:
    """Every key that a family reads, by its own name."""
    family_found = FAMILIES[family]
    tables = (
        family_found.sizes,
        family_found.settings,
        family_found.dropout,
        family_found.refused,
        family_found.spellings,
    )
    return [name for names in tables for name in names] + ["architectures", "id2label", "text_config"]


def odd(chance: random.Random) -> object:
    """A value of a configuration that may make no sense."""
    value = chance.choice(ODD)
    for _ in range(chance.choice((0, 0, 0, 1, 2, 50))):
        value = chance.choice(([value], {"text_config": value}, [value, value] if chance.random() < 0.2 else [value]))
    return value


def made(chance: random.Random) -> bytes:
    """One input."""
    values = dict(chance.choice(presets()).values) if chance.random() < 0.6 else {}
    if not values or chance.random() < 0.3:
        values["model_type"] = chance.choice(list(FAMILIES))
    keys = keys_of(str(values["model_type"]))
    for _ in range(chance.choice((0, 1, 1, 2, 4, 8))):
        name = chance.choice((*keys, *values))
        values[name] = odd(chance) if chance.random() < 0.7 else chance.randint(0, 40)
    if chance.random() < 0.1:
        values = {"model_type": chance.choice(("llava", "gemma3", 3, None)), "text_config": values}
    text = json.dumps(values)
    if chance.random() < 0.1:
        at, length = chance.randrange(len(text)), chance.choice((1, 3, 20))
        text = text[:at] + chance.choice(("", "{", "NaN", "1e999", "\\ud800", '"')) + text[at + length :]
    return text.encode("utf-8", errors="surrogatepass")


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong with so many inputs; the same inputs for the same seed."""
    chance = random.Random(seed)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, before[1]))
    faults = []
    try:
        for data in (made(chance) for _ in range(count)):
            try:
                target(data)
            except Exception as error:
                faults.append(f"{type(error).__name__}: {error}: {data!r}")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    return faults


def main(seconds: float, seed: int) -> None:
    """Make inputs until the time is over."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    counts = {"a cost": 0, "one line": 0}
    slowest = (0.0, b"")
    while time.monotonic() < end:
        data = made(chance)
        start = time.process_time()
        try:
            message = target(data)
        except BaseException:
            print("this input breaks the rule:", data)
            raise
        slowest = max(slowest, (time.process_time() - start, data))
        counts["a cost" if message.startswith("Amount") else "one line"] += 1
    print(f"{sum(counts.values()):,} inputs: {counts['a cost']:,} gave a cost, {counts['one line']:,} one line of text")
    print(f"slowest: {slowest[0]:.2f} s of CPU for {slowest[1][:200]!r}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0, int(sys.argv[2]) if len(sys.argv) > 2 else 0)

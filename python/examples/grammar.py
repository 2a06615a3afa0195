"""A text to learn from: sentences of a small grammar, the same for the same seed."""

from __future__ import annotations

import random

_RULES: dict[str, list[str]] = {
    "sentence": [
        "{clause}.",
        "{clause}, and {clause}.",
        "When {clause}, {clause}.",
        "{clause}, because {clause}.",
        "Nobody knows why {clause}.",
    ],
    "clause": [
        "{thing} {action}",
        "{thing} {action} {place}",
        "{person} {sees} that {thing} {action}",
    ],
    "thing": ["the {quality} {noun}", "a {noun}", "every {noun}", "the {noun} of {person}"],
    "noun": [
        "river",
        "lantern",
        "ladder",
        "orchard",
        "engine",
        "letter",
        "harbour",
        "clock",
        "bridge",
        "kettle",
    ],
    "quality": ["quiet", "broken", "northern", "patient", "copper", "forgotten", "slow", "bright"],
    "action": [
        "turns",
        "waits",
        "falls silent",
        "comes back",
        "counts the hours",
        "carries the rest",
        "gives way",
    ],
    "place": [
        "behind the mill",
        "at the edge of the water",
        "under the stairs",
        "before the first snow",
    ],
    "person": [
        "the keeper",
        "the old surveyor",
        "a child",
        "the night train's driver",
        "my sister",
    ],
    "sees": ["says", "hopes", "writes", "has heard", "pretends"],
}
_SENTENCES_PER_PARAGRAPH = 6


def text(characters: int, seed: int) -> str:
    """At least so many characters of paragraphs, drawn from ``seed``."""
    source = random.Random(seed)
    paragraphs: list[str] = []
    length = 0
    while length < characters:
        sentences = [
            _capital(_expand("{sentence}", source)) for _ in range(_SENTENCES_PER_PARAGRAPH)
        ]
        paragraphs.append(" ".join(sentences))
        length += len(paragraphs[-1]) + 1
    return "\n".join(paragraphs)


def _expand(template: str, source: random.Random) -> str:
    """The template with every rule in it replaced by one of its forms."""
    while "{" in template:
        start, end = template.index("{"), template.index("}")
        form = source.choice(_RULES[template[start + 1 : end]])
        template = template[:start] + form + template[end + 1 :]
    return template


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]

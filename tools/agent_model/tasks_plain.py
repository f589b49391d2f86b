"""Beginnings of chats and texts without tools, on which the adapter must change nothing."""

from names import Names

#: The chat whose reply is the text of `plain_text.txt`.
WORKSHOP_CHAT = "<|im_start|>user\nTell me about a workshop.<|im_end|>\n<|im_start|>assistant\n"


def plain_prompt(names: Names) -> str:
    """Return the beginning of a chat or of a text."""
    noun, adjective, person = names.noun(), names.adjective(), names.person()
    if names.chance(0.4):
        return names.choice(
            (
                f"The {adjective} {noun}",
                f"{person} was born in",
                f"In the last {names.number(2, 50)} years, people have",
                f"{names.sentence()} ",
                f"There are many kinds of {noun}s. ",
                f"How to choose a {noun}\n\n",
            )
        )
    question = names.choice(
        (
            f"What is a {noun}?",
            f"Tell me about the {noun}.",
            f"Write a short story about a {adjective} {noun}.",
            f"Why do people like {noun}s?",
            f"Give me three facts about {noun}s.",
            f"Explain to a child what a {noun} is.",
            f"Write a poem about {person} and the {noun}.",
            f"What is {names.number(2, 90)} plus {names.number(2, 90)}?",
            f"How do I {names.phrase_of_words()}?",
            f"Write an email to {person} about the {noun}.",
            f"Write a Python function that counts {noun}s in a list.",
            f"Which is better, a {noun} or a {names.noun()}?",
        )
    )
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"

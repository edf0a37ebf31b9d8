"""Measure and check the language of everything that a user reads.

    python tools/language.py check                     # words that docs, help and messages avoid (part of make lint)
    python tools/language.py check --accept            # write the present findings to tools/language_allowed.txt
    python tools/language.py count                     # words of docs/, and words per 1,000 of prose in docs, README and help
    python tools/language.py count --pages             # the same, and the words of each page
    python tools/language.py sample 60 --seed 7        # random sentences of help, errors, log lines and docs
    python tools/language.py sample 60 --code          # random docstrings and comments of the package

Docs are README, SECURITY, CONTRIBUTING and docs/ without generated reference pages. Code blocks are left out.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import importlib
import random
import re
import sys
import tokenize
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RATES", "Text", "code", "docs", "findings", "help_texts", "main", "messages", "sentences"]

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "tools" / "language_allowed.txt"

#: Pages whose words come from elsewhere: from docstrings and models, or from a run.
GENERATED = frozenset(
    f"docs/reference/{name}.md" for name in ("arguments", "operators", "sensors", "airflow-matrix", "cli", "output")
)

#: Generated reference too, whose sentences are written for their pages: not counted, but checked and sampled.
GENERATED_TABLES = frozenset({"docs/reference/job.md", "docs/reference/timers.md"})

#: Words of prose that docs/ may have without the generated reference.
MOST_WORDS = 35_000

#: Expressions to avoid, and the plain alternative.
HABITS: tuple[tuple[str, str], ...] = (
    (r"rooms?|doors?|houses?|voices?|luggage|nurser(?:y|ies)|bells?|crews?|breathers?", "package, module, pool, event, ..."),
    (r"somebody|nobody|whoever|anybody", "a process, no process, the reader, ..."),
    (r"tells?|told|telling|hears?|heard|speaks?|spoken?", "report, send, receive, publish"),
    (r"says?|said|saying", "report, name, state"),
    (r"so long|be it|at the most|is to be|and no other", "a shorter sentence"),
    (r"let the|lets the", "an active verb"),
)

#: Words per 1,000 words of prose that are not to be exceeded.
RATES: tuple[tuple[str, str, float], ...] = (
    ("what", r"what", 3.0),
    ("tell, told, say, said", r"tells?|told|telling|says?|said|saying", 1.0),
    ("nobody, somebody, whoever", r"nobody|somebody|whoever", 0.3),
)

_HABIT = re.compile("|".join(f"(?P<h{n}>\\b(?:{pattern})\\b)" for n, (pattern, _) in enumerate(HABITS)), re.IGNORECASE)
_FORMAT = re.compile(r"%(?:\.?\w+)?[sdrfg]")
#: Part of a reference page that a tool writes.
_WRITTEN = re.compile(r"<!-- (?P<name>\w+): written by .*?<!-- end of (?P=name) -->", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w'-]*")
_LOGGED = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_ERRORS = frozenset({"Problem", "refusal", "Verdict"})
#: Errors whose first argument is the field that is printed before the text.
_FIELD_FIRST = frozenset({"Problem", "SiteError", "_refuse"})
#: Errors with an argument that follows "FIELD: VALUE is not allowed; expected", and its position.
_EXPECTED = {
    "WireError": 2,
    "VersionError": 2,
    "OptionError": 2,
    "ConnectionFieldError": 3,
    "RefusedError": 0,
    "Unexpected": 1,
    "_Wrong": 1,
    "refusal": 0,
}


@dataclass(frozen=True, kw_only=True)
class Text:
    """A piece of prose. `kind` is `docs`, `help`, `error`, `log`, `docstring` or `comment`; `place` names its file.

    `heading` is the heading above it. `beside` is what a reader sees with it: the first cell of its table row and the head of
    its column, the line that introduces its list, or the option or command that a help text describes.
    """

    kind: str
    place: str
    text: str
    heading: str = ""
    beside: str = ""
    previous: str = ""


def docs(*, written: bool = True) -> Iterator[Text]:
    """Yield each paragraph, list item and table cell of the pages, or, unless `written`, no reference that a tool writes."""
    pages = ["README.md", "SECURITY.md", "CONTRIBUTING.md", *sorted(p.relative_to(ROOT).as_posix() for p in _pages())]
    for page in pages:
        if page not in GENERATED:
            text = (ROOT / page).read_text(encoding="utf-8")
            if not written and page.startswith("docs/reference/"):
                text = "" if page in GENERATED_TABLES else _WRITTEN.sub("", text)
            yield from _page(page, re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE))


def _page(page: str, text: str) -> Iterator[Text]:
    head: list[str] = []
    heading = introduction = ""
    blocks = re.split(r"\n\s*\n|\n(?=\||#+ |[*-] |\d+\. )", text)
    for block, following in zip(blocks, [*blocks[1:], ""], strict=True):
        start = block.lstrip()
        if start.startswith("|"):
            row = [_plain(cell) for cell in re.split(r"(?<!\\)\|", block.strip().removeprefix("|").removesuffix("|"))]
            is_head = re.match(r"\|[ :|-]+\|?$", following) is not None
            head = row if is_head else head
            for index, plain in enumerate(row):
                title = head[index] if index < len(head) else ""
                beside = f"{row[0]} | {title}" if index else title
                yield from _prose(page, plain, heading, "column" if is_head else beside)
            continue
        plain = _plain(block)
        if start.startswith("#"):
            heading, introduction = plain, ""
            yield from _prose(page, plain, "", "heading")
        elif re.match(r"[*-] |\d+\. ", start):
            yield from _prose(page, plain, heading, introduction)
        elif plain:
            yield from _prose(page, plain, heading, "")
            introduction = list(_split(plain))[-1] if plain.endswith(":") else ""


def _prose(page: str, text: str, heading: str, beside: str) -> Iterator[Text]:
    if re.search(r"[A-Za-z]{2}", text):
        yield Text(kind="docs", place=page, text=text, heading=heading, beside=beside)


def help_texts() -> Iterator[Text]:
    """Yield the description and every option's help of both commands."""
    from rallypoint.agent.main import build_parser as agent  # noqa: PLC0415 - the packages are needed for this alone
    from rallypoint.cli.main import build_parser as command  # noqa: PLC0415

    for parser in (command(), agent()):
        yield from _parser_texts(parser, parser.prog)


@functools.cache
def messages() -> tuple[Text, ...]:
    """Return the texts of errors and log lines; `<name>` stands for a value, as in a usage line.

    A constant of the module is shown with its value, as a user sees it.
    """
    return tuple(_messages())


def _messages() -> Iterator[Text]:
    for path in sorted((ROOT / "rallypoint").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kind = _kind(node)
            if kind:
                start = _start(node)
                for text in _strings(node):
                    if " " in re.sub(r"<\w*>", "", text).strip():
                        yield Text(kind=kind, place=place, text=_with_constants(f"{start}{text}", place))


def _with_constants(text: str, place: str) -> str:
    return re.sub(r"<([A-Z][A-Z_]+)>", lambda found: _constant(place, found[1]) or found[0], text)


def _constant(place: str, name: str) -> str:
    """Return how a message shows a constant of a module, an empty text for a value that is no text, number or list of them."""
    try:
        module = importlib.import_module(place.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    except ImportError:  # such as Ray's, which is an extra
        return ""
    owners = (module, *(other for other in vars(module).values() if isinstance(other, types.ModuleType)))
    values = (getattr(owner, spelling, None) for owner in owners for spelling in (name, f"_{name}"))
    value = next((value for value in values if value is not None), None)
    if isinstance(value, (tuple, list, frozenset, set, dict)) and all(isinstance(item, str) for item in value):
        return ", ".join(sorted(value) if isinstance(value, (frozenset, set)) else value)
    return str(value) if isinstance(value, (str, int, float)) else ""


def code() -> Iterator[Text]:
    """Yield each docstring of the package, and each comment with the line of code that follows it."""
    for path in sorted((ROOT / "rallypoint").rglob("*.py")):
        place, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
                text := ast.get_docstring(node)
            ):
                yield Text(kind="docstring", place=place, text=text, heading=getattr(node, "name", ""))
        yield from _comments(place, source)


def _comments(place: str, source: str) -> Iterator[Text]:
    lines, before = source.splitlines(), (-1, "")
    found: list[tuple[int, str]] = []  # the last line of a comment, and its text
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        text = token.string.lstrip("#: ")
        if token.type != tokenize.COMMENT or re.match(r"noqa|type: |---", text):
            continue
        row, alone = token.start[0], token.line.strip().startswith("#")
        if alone and found and before == (row - 1, "alone"):
            found[-1] = (row, f"{found[-1][1]} {text}")
        else:
            found.append((row, text))
        before = (row, "alone" if alone else "")
    for row, text in found:
        beside = lines[row - 1].partition("  #")[0].strip()
        yield Text(kind="comment", place=place, text=text, beside=lines[row].strip() if beside.startswith("#") else beside)


def sentences(texts: Iterator[Text]) -> Iterator[Text]:
    """Yield the sentences of texts that have at least four words, each with the sentence that a reader has read before it."""
    for text in texts:
        previous = ""
        for sentence in _split(text.text):
            if len(re.findall(r"[A-Za-z]{2,}", re.sub(r"`[^`]*`|<\w+>", "", sentence))) >= 4:
                yield dataclasses.replace(text, text=sentence.strip(), previous=previous)
            previous = sentence.strip()


def _split(text: str) -> Iterator[str]:
    """Yield the sentences of a text. A full stop inside of a code span or of brackets ends no sentence."""
    pending = ""
    for piece in re.split(r"(?<=[.!?])( +)(?=[A-Z`*\"])", text):
        pending += piece
        whole = pending.count("`") % 2 == 0 and pending.count("(") == pending.count(")")
        if whole and pending.endswith((".", "!", "?")):
            yield pending.strip()
            pending = ""
    if pending.strip():
        yield pending.strip()


def findings() -> list[str]:
    """Return `PLACE: expression: text` for each expression to avoid."""
    found = []
    for text in (*docs(), *help_texts(), *messages()):
        prose = re.sub(r"`[^`]*`", "`…`", text.text)
        found += [f"{text.place}: {match[0].lower()}: {text.text[:100]}" for match in _HABIT.finditer(prose)]
    return sorted(set(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 1 when something is to be mended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument(
        "--accept", action="store_true", help="write the present findings to the allow-list"
    )
    count = commands.add_parser("count")
    count.add_argument("--pages", action="store_true", help="also print the words of each page")
    count.add_argument("--limit", type=int, default=MOST_WORDS, help="words that docs/ may have")
    sample = commands.add_parser("sample")
    sample.add_argument("number", type=int)
    sample.add_argument("--seed", type=int, default=1)
    sample.add_argument("--code", action="store_true", help="draw docstrings and comments")
    options = parser.parse_args(arguments)
    if options.command == "check":
        return _check(accept=options.accept)
    if options.command == "count":
        return _count(pages=options.pages, limit=options.limit)
    texts = code() if options.code else sentences(iter((*docs(), *help_texts(), *messages())))
    return _sample(texts, options.number, options.seed)


def _check(*, accept: bool) -> int:
    found = findings()
    if accept:
        ALLOWED.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
        return 0
    allowed = set(ALLOWED.read_text(encoding="utf-8").splitlines())
    new = [line for line in found if line not in allowed]
    for line in new:
        print(line)
    if new:
        print(f"{len(new)} new expressions to avoid; write them plainly, or add a line to {ALLOWED.relative_to(ROOT)}")
    return int(bool(new))


def _count(*, pages: bool, limit: int) -> int:
    words: collections.Counter[str] = collections.Counter()
    for text in docs(written=False):
        words[text.place] += len(_WORD.findall(text.text))
    if pages:
        for page, number in words.most_common():
            print(f"{number:7,} {page}")
    size = sum(number for page, number in words.items() if page.startswith("docs/"))
    print(f"{size:,} words in docs/ (at most {limit:,}) without the generated reference, which is:")
    print(f"  {', '.join(sorted(GENERATED | GENERATED_TABLES))}, and marked parts of other reference pages")
    prose = " ".join(text.text for text in (*docs(), *help_texts()))
    total = len(_WORD.findall(prose))
    print(f"{total:,} words of prose in docs/, README, SECURITY, CONTRIBUTING and help")
    high = size > limit
    for name, pattern, most in RATES:
        rate = 1000 * len(re.findall(rf"\b(?:{pattern})\b", prose, re.IGNORECASE)) / total
        high |= rate > most
        print(f"{name:<28}{rate:6.2f} per 1,000 (at most {most:g})")
    return int(high)


def _sample(texts: Iterator[Text], number: int, seed: int) -> int:
    chosen: list[Text] = []
    pools = collections.defaultdict(list)
    for text in texts:
        pools[text.kind].append(text)
    generator = random.Random(seed)
    for share, kind in enumerate(sorted(pools)):
        size = number // len(pools) + (share < number % len(pools))
        chosen += generator.sample(sorted(set(pools[kind]), key=dataclasses.astuple), size)
    for index, text in enumerate(chosen, 1):
        place = " > ".join(part for part in (text.place, text.heading) if part)
        place = f"{place} [{text.beside}]" if text.beside else place
        previous = f"(after: {text.previous}) " if text.previous else ""
        print(f"{index:3} {text.kind:<5} {place}: {previous}{text.text}")
    return 0


def _pages() -> Iterator[Path]:
    return (ROOT / "docs").rglob("*.md")


def _plain(text: str) -> str:
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"^\s*(?:#+ |> |[*-] |\d+\. )|\*\*", "", text, flags=re.MULTILINE).split())


def _parser_texts(parser: argparse.ArgumentParser, place: str) -> Iterator[Text]:
    for line in re.split(r"\n\s*\n|\n(?=  )", "\n\n".join(filter(None, (parser.description, parser.epilog)))):
        example, _, text = line.strip().partition("   ")  # an indented line of examples, or a paragraph
        text, beside = (text, example) if text.strip() else (line, "")
        if text.strip():
            yield Text(kind="help", place=place, text=" ".join(text.split()), beside=beside)
    for action in parser._actions:  # noqa: SLF001 - there is no other list
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for choice in action._choices_actions:  # noqa: SLF001
                if choice.help and choice.help != argparse.SUPPRESS:
                    yield Text(kind="help", place=place, text=choice.help, beside=choice.dest)
            for name, sub in action.choices.items():
                yield from _parser_texts(sub, f"{place} {name}")
        elif action.help and action.help != argparse.SUPPRESS:
            option = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            yield Text(kind="help", place=place, text=" ".join(action.help.split()), beside=option)


def _kind(node: ast.AST) -> str:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return "error"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in _LOGGED and "log" in ast.unparse(node.func.value).lower():
            return "log"
        if isinstance(node.func, ast.Name) and node.func.id in _ERRORS:
            return "error"
    return ""


def _name(node: ast.AST) -> str:
    """Return the name of the class or function that a node calls or raises."""
    call = node.exc if isinstance(node, ast.Raise) else node
    if not isinstance(call, ast.Call):
        return ""
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _start(node: ast.AST) -> str:
    """Return what is printed before the text of a node: the name of a field, and for some errors also its value."""
    call = node.exc if isinstance(node, ast.Raise) else node
    position = _EXPECTED.get(_name(node), -1)
    if not isinstance(call, ast.Call) or (position < 0 and _name(node) not in _FIELD_FIRST):
        return ""
    field = _field(call.args[max(position - 2, 0)]) if position != 0 and call.args else "<field>"
    return f"{field}: <value> is not allowed; expected " if position >= 0 else f"{field}: "


def _field(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        return node.value
    name = _value_name(node)
    return "<field>" if name == "value" else f"<{name}>"


def _strings(node: ast.AST) -> Iterator[str]:
    call = node.exc if isinstance(node, ast.Raise) else node
    assert isinstance(call, ast.Call)
    values = (*call.args, *(keyword.value for keyword in call.keywords))
    if _name(node) in _EXPECTED and call.args:
        position = _EXPECTED[_name(node)]
        values = tuple(call.args[position : position + 1])
    for index, value in enumerate(values):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            text = value.value
            for argument in values[index + 1 :]:
                text = _FORMAT.sub(f"<{_value_name(argument)}>", text, count=1)
            yield " ".join(_FORMAT.sub("<value>", text).split())
        elif isinstance(value, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else f"<{_value_name(part)}>" for part in value.values)
            yield " ".join("".join(parts).split())


def _value_name(node: ast.AST | None) -> str:
    """Return a short name of a value in a message: the last name of its expression, `value` if that is not a plain word."""
    if isinstance(node, ast.FormattedValue | ast.Subscript | ast.Starred):
        return _value_name(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_hint":
        return "hint"  # such as "did you mean ...?"
    if isinstance(node, ast.Call):  # of a function with one value, the name of the value
        return _value_name(node.args[0] if node.args else node.func)
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    name = name.strip("_")
    return "value" if not name or _HABIT.fullmatch(name) else name


if __name__ == "__main__":
    sys.exit(main())

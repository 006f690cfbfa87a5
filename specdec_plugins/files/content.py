"""A whole file as bytes: the texts in it, and the file with their translations.

Most files are one text in UTF-8. The module of a format may say otherwise, with one of two functions:

* ``decoded(data)`` returns the text of a file in another encoding, and the function that encodes a text for it.
* ``parts(package)`` names the members of a zip file that have text. Each is read as a text of that format.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType

from specdec_plugins.files import MOST, Options, TextFile, Unreadable, module_of
from specdec_plugins.files.packages import LARGEST, Package
from specdec_plugins.text.lines import decoded
from specdec_plugins.text.placing import Placed, Unit

Encode = Callable[[str], bytes]


@dataclass(frozen=True)
class Content:
    """The ``texts`` of a file by name, which is empty for a file that is one text. ``encode`` makes the file's bytes of them."""

    path: str
    texts: Sequence[tuple[str, TextFile]]
    encode: Callable[[Sequence[str]], bytes]

    @property
    def units(self) -> list[Unit]:
        return [unit for _, text in self.texts for unit in text.units]

    def places(self) -> list[str]:
        """Where each unit is, for messages: its line; in a package its member, and its number among the texts of that."""
        places = list[str]()
        for name, text in self.texts:
            lines = text.lines()
            places += [f"{name}, text {n}" for n in range(1, len(lines) + 1)] if name else [f"line {line}" for line in lines]
        return places

    def translated(self, placed: Sequence[Placed | None], least: float = 0.0) -> bytes:
        """The file with the translation of each unit, as `TextFile.translated`. Raises ValueError if it would be damaged."""
        rest, written = iter(placed), list[str]()
        for name, text in self.texts:
            try:
                written.append(text.translated(list(islice(rest, len(text.units))), least))
            except Unreadable as error:
                raise ValueError(f"{placed_in(self.path, name, text.source, error)}; the file is not written") from None
        return self.encode(written)


@dataclass(frozen=True)
class Source:
    """A file before its texts are looked for: its characters, by name as in `Content`. ``packed``: those of members of a zip."""

    path: str
    form: str
    texts: Mapping[str, str]
    encode: Callable[[Sequence[str]], bytes]
    packed: bool

    def content(self, options: Options, markup: str | None = None) -> Content:
        """Raises ValueError, which names the file, and the member and line at fault."""
        found = list[tuple[str, TextFile]]()
        for name, text in self.texts.items():
            try:
                found.append((name, TextFile(text, self.form, options, markup)))
            except Unreadable as error:
                raise ValueError(placed_in(self.path, name, text, error)) from None
        return Content(self.path, found, self.encode)


def read_source(data: bytes, path: str, form: str) -> Source:
    """The characters of a file of a format. Raises ValueError, which names the file, and the member and line at fault."""
    module = module_of(form)
    if not is_package(form):
        encode, text = read_text(data, path, module)
        return Source(path, form, {"": text}, lambda texts: encode(texts[0]), False)
    try:
        package = Package(data)
        members = {member: package.read(member) for member in module.parts(package)}
    except Unreadable as error:
        raise ValueError(f"{path}: {error.what}") from None
    read = {member: read_text(content, f"{path}, {member}", module) for member, content in members.items()}

    def written(texts: Sequence[str]) -> bytes:
        return package.written({member: encode(text) for (member, (encode, _)), text in zip(read.items(), texts)})

    return Source(path, form, {member: text for member, (_, text) in read.items()}, written, True)


def read_content(data: bytes, path: str, form: str, options: Options, markup: str | None = None) -> Content:
    """The content of a file of a format. Raises ValueError as `read_source` and `Source.content` do."""
    return read_source(data, path, form).content(options, markup)


def read_text(data: bytes, name: str, module: ModuleType) -> tuple[Encode, str]:
    """The text of a file, and how one is encoded for it."""
    try:
        if (special := getattr(module, "decoded", None)) is not None:
            return special(data)
        mark, text = decoded(data)
    except ValueError as error:
        raise ValueError(f"{name}, {error}") from None
    return lambda text: (mark + text).encode(), text


def placed_in(path: str, name: str, source: str, error: Unreadable) -> str:
    return f"{path}{f', {name}' if name else ''}{error.where(source)}: {error.what}"


def is_package(form: str) -> bool:
    """Whether files of a format are zip files."""
    return hasattr(module_of(form), "parts")


def most_bytes(form: str) -> int:
    """The largest file of a format."""
    return LARGEST if is_package(form) else MOST

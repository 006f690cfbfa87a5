"""Zip files of XML parts, such as DOCX and ODT: read within bounds, and written again with some parts replaced.

A package is untrusted: its members are counted and their sizes bounded before one is unpacked, and none is written to a disk.
"""

import io
import zlib
from collections.abc import Iterator, Mapping
from posixpath import dirname, join, normpath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from specdec_plugins.files import MOST, Unreadable
from specdec_plugins.files.xml import tokens

LARGEST = 64_000_000  # bytes of a package, which is held in memory; pictures are most of it
MEMBERS = 5_000
UNPACKED = 256_000_000  # bytes of all members
RATIO, SMALL = 200, 1_000_000  # unpacked to packed size of a member of more bytes than these; XML reaches some 50
ENCRYPTED = 1  # a bit of a member's flags
OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # Microsoft's files before DOCX, and DOCX with a password, begin so


class Package:
    """The members of a zip file. Raises Unreadable for one that is damaged, encrypted, or beyond the bounds."""

    def __init__(self, data: bytes):
        if data.startswith(OLD):
            raise Unreadable(None, "encrypted, or of a version before 2007; save it as DOCX without a password")
        try:
            self.zip = ZipFile(io.BytesIO(data))
            self.members = {member.filename: member for member in self.zip.infolist()}
        except (BadZipFile, ValueError, NotImplementedError, OSError) as error:
            raise Unreadable(None, f"not a zip file, or damaged ({error})") from None
        members = self.zip.infolist()
        if len(members) > MEMBERS:
            raise Unreadable(None, f"{len(members):,} members exceed the limit of {MEMBERS:,}")
        if len(self.members) < len(members):
            raise Unreadable(None, "has two members of one name")
        if sum(member.file_size for member in members) > UNPACKED:
            raise Unreadable(None, f"unpacks to more than {UNPACKED:,} bytes")
        for member in members:
            if member.file_size > max(SMALL, RATIO * member.compress_size):
                raise Unreadable(None, f"{member.filename!a:.100} unpacks to more than {RATIO} times its size")
            if member.flag_bits & ENCRYPTED:
                raise Unreadable(None, f"{member.filename!a:.100} is encrypted; save the file without a password")
            if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                raise Unreadable(None, f"{member.filename!a:.100} is compressed by another method than deflate")
        for name in self.members:  # those that are only copied must be whole too
            self.read(name, UNPACKED)

    def read(self, name: str, most: int = MOST) -> bytes:
        """A member's content."""
        if (member := self.members.get(name)) is None:
            raise Unreadable(None, f"has no member {name!a:.100}")
        if member.file_size > most:
            raise Unreadable(None, f"{name!a:.100} is larger than {most:,} bytes")
        try:
            return self.zip.read(member)
        except (BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError, ValueError, zlib.error) as error:
            raise Unreadable(None, f"{name!a:.100} is damaged ({error or type(error).__name__})") from None

    def written(self, changed: Mapping[str, bytes]) -> bytes:
        """The package with new content of some members. All keep their order, dates and attributes."""
        stream = io.BytesIO()
        with ZipFile(stream, "w") as package:
            package.comment = self.zip.comment
            for name, old in self.members.items():
                member = ZipInfo(name, old.date_time)
                member.compress_type, member.external_attr, member.create_system = (
                    old.compress_type,
                    old.external_attr,
                    old.create_system,
                )
                data = changed.get(name)
                package.writestr(member, self.read(name, UNPACKED) if data is None else data)
        return stream.getvalue()


def related(package: Package, part: str) -> Iterator[tuple[str, str]]:
    """The kinds and names of the parts that a part of an Office document names, or the package itself."""
    folder = dirname(part)
    member = join(folder, "_rels", f"{part[len(folder) :].lstrip('/')}.rels")
    if part and member not in package.members:
        return
    try:
        found = tokens(package.read(member).decode().removeprefix("\ufeff"))
    except UnicodeDecodeError:
        raise Unreadable(None, f"{member}: not UTF-8") from None
    except Unreadable as error:
        raise Unreadable(None, f"{member}: {error.what}") from None
    for token in found:
        attributes = dict(token.attributes)
        if token.name == "Relationship" and attributes.get("TargetMode") != "External":
            target = normpath(join("/", folder, attributes.get("Target") or "")).lstrip("/")
            yield (attributes.get("Type") or "").rpartition("/")[2], target

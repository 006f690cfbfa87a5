"""DOCX and ODT: what python-docx, odfpy and lxml read before and after a translation."""

import io
import random
import re
import time
import zipfile
from contextlib import suppress

import pytest
from conftest import ROOT
from test_files import LINE, Fake, run
from test_files import translated_content as translated

from specdec_plugins.commands.translation.files import File
from specdec_plugins.files import Options
from specdec_plugins.files.content import read_content
from specdec_plugins.units import translate_units

docx = pytest.importorskip("docx")
opendocument = pytest.importorskip("odf.opendocument")
etree = pytest.importorskip("lxml.etree")

W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
DECLARED = (
    f'xmlns:w="{W}" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" xmlns:v="urn:schemas-microsoft-com:vml" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
)
BOX = "<w:txbxContent><w:p><w:pPr><w:jc w:val='center'/></w:pPr><w:r><w:t>Text in a <w:br/></w:t></w:r></w:p></w:txbxContent>"
BOX = BOX.replace("Text in a <w:br/>", "Text in a box")
SENTENCES = {
    "runs": '<w:r w:rsidR="001"><w:t xml:space="preserve">The red </w:t></w:r><w:r><w:rPr><w:b/></w:rPr><w:t>hou</w:t></w:r>'
    '<w:proofErr w:type="spellStart"/><w:r w:rsidR="2"><w:rPr><w:b/><w:lang w:val="en-US"/></w:rPr><w:t>se</w:t></w:r>'
    '<w:r><w:t xml:space="preserve"> is far. It is </w:t></w:r><w:r><w:rPr><w:i/></w:rPr><w:t>not</w:t></w:r><w:r>'
    '<w:t xml:space="preserve"> here.</w:t></w:r>',
    "link": '<w:r><w:t xml:space="preserve">See </w:t></w:r><w:hyperlink r:id="rId1" w:history="1"><w:r><w:rPr><w:rStyle '
    'w:val="Hyperlink"/></w:rPr><w:t>the manual</w:t></w:r></w:hyperlink><w:r><w:t xml:space="preserve"> first.</w:t></w:r>',
    "footnote": '<w:r><w:t>A claim</w:t></w:r><w:r><w:rPr><w:rStyle w:val="FootnoteReference"/></w:rPr><w:footnoteReference '
    'w:id="2"/></w:r><w:r><w:t xml:space="preserve"> of ours.</w:t></w:r>',
    "field": '<w:r><w:t xml:space="preserve">On page </w:t></w:r><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText '
    'xml:space="preserve"> PAGE </w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>3</w:t></w:r>'
    '<w:r><w:fldChar w:fldCharType="end"/></w:r><w:r><w:t xml:space="preserve"> of it.</w:t></w:r>',
    "old link": '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> HYPERLINK "http://a.b" </w:instrText></w:r><w:r>'
    '<w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>Some site</w:t></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r>'
    '<w:r><w:t xml:space="preserve"> of &lt;ours&gt;.</w:t></w:r>',
    "tabs": "<w:r><w:t>First</w:t><w:tab/><w:t>second</w:t><w:br/><w:t>third one</w:t></w:r>",
    "box": "<w:r><w:t>Words</w:t></w:r><w:r><mc:AlternateContent><mc:Choice Requires='wps'><w:drawing><wp:anchor>"
    f"<wp:docPr id='1' name='a' descr='Red house'/><wps:txbx>{BOX}</wps:txbx></wp:anchor></w:drawing></mc:Choice><mc:Fallback>"
    f"<w:pict><v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r><w:r>"
    "<w:t xml:space='preserve'> go on.</w:t></w:r>",
    "changes": '<w:del w:id="3" w:author="x"><w:r><w:delText>Old text</w:delText></w:r></w:del><w:ins w:id="4" w:author="x"><w:r>'
    '<w:t xml:space="preserve">New text </w:t></w:r></w:ins><w:r><w:t>stays.</w:t></w:r>',
    "marks": '<w:bookmarkStart w:id="5" w:name="m"/><w:r><w:t>Marked</w:t></w:r><w:bookmarkEnd w:id="5"/><w:r><w:t '
    'xml:space="preserve"> words</w:t></w:r><w:r><w:sym w:font="Wingdings" w:char="F04A"/></w:r><w:r><w:rPr><w:vanish/></w:rPr>'
    '<w:t xml:space="preserve"> hidden</w:t></w:r>',
    "controls": "<w:sdt><w:sdtPr><w:id w:val='7'/></w:sdtPr><w:sdtContent><w:r><w:t>Click here</w:t>"
    "</w:r></w:sdtContent></w:sdt>",
    "number": "<w:r><w:t>12</w:t></w:r>",
}
BLOCKS = [
    "<w:p><w:pPr><w:pStyle w:val='Heading1'/><w:rPr><w:b/></w:rPr></w:pPr>{}</w:p>",
    "<w:p>{}</w:p>",
    "<w:p w:rsidR='1'>{}<w:r><w:t xml:space='preserve'> </w:t></w:r>{}</w:p>",
    "<w:tbl><w:tblPr/><w:tblGrid><w:gridCol w:w='1'/></w:tblGrid><w:tr><w:tc><w:tcPr/><w:p>{}</w:p></w:tc></w:tr></w:tbl>",
    "<w:sdt><w:sdtContent><w:p>\n  <w:pPr/>\n  {}\n</w:p></w:sdtContent></w:sdt>",
    "<w:p/>",
]


def part(name, inner):
    return f'<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n<w:{name} {DECLARED}>{inner}</w:{name}>'


def docx_file(draw):
    """A document with a header, a footer, footnotes and comments, upon python-docx's own template."""
    document = docx.Document()
    document.sections[0].header.paragraphs[0].text = "A header"
    document.sections[0].footer.paragraphs[0].text = "Foot of the page"
    stream = io.BytesIO()
    document.save(stream)

    def blocks(count):
        names = list(SENTENCES)
        return "".join(draw.choice(BLOCKS).format(*(SENTENCES[draw.choice(names)] for _ in range(2))) for _ in range(count))

    notes = f'<w:footnote w:id="2">{blocks(1)}</w:footnote>'
    remarks = f'<w:comment w:id="1" w:author="x">{blocks(1)}</w:comment>'
    more = {"word/footnotes.xml": part("footnotes", notes), "word/comments.xml": part("comments", remarks)}

    def changed(name, old):
        text = old.decode() if name.endswith((".xml", ".rels")) else old
        if name == "word/document.xml":
            inner = text[text.index("<w:body>") + len("<w:body>") : text.index("</w:body>")]
            return re.sub("<w:document .*?>", f"<w:document {DECLARED}>", text.replace(inner, blocks(draw.randint(1, 6)) + inner))
        if name == "[Content_Types].xml":
            kinds = "".join(
                f'<Override PartName="/{each}" ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.'
                f'{each[5:-4]}+xml"/>'
                for each in more
            )
            return text.replace("</Types>", kinds + "</Types>")
        if name == "word/_rels/document.xml.rels":
            kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
            own = "".join(f'<Relationship Id="n{each[5:9]}" Type="{kind}{each[5:-4]}" Target="{each[5:]}"/>' for each in more)
            return text.replace("</Relationships>", own + "</Relationships>")
        return text

    return rewritten(stream.getvalue(), changed, more)


ODT = {
    "span": 'The red <text:span text:style-name="T1">house</text:span> is far. It is '
    '<text:span text:style-name="T2">not</text:span> so.',
    "split": 'The hou<text:span text:style-name="T3">se is</text:span> far<text:span text:style-name="T3"> away</text:span>.',
    "link": 'See <text:a xlink:type="simple" xlink:href="http://a.b/">the manual</text:a> first.',
    "note": 'A claim<text:note text:id="n1" text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body>'
    '<text:p text:style-name="Footnote">Words in a note.</text:p></text:note-body></text:note> of ours.',
    "spaces": 'Two<text:s/>words<text:s text:c="3"/>apart &lt;here&gt;,\n   wrapped.',
    "tabs": "First<text:tab/>second<text:line-break/>third one",
    "field": 'On page <text:page-number text:select-page="current">3</text:page-number> of it.',
    "frame": 'Words<draw:frame draw:name="f" text:anchor-type="as-char"><draw:text-box><text:p>Text in a box</text:p>'
    "</draw:text-box>"
    "</draw:frame> go on.",
    "marks": '<text:bookmark-start text:name="m"/>Marked<text:bookmark-end text:name="m"/> words<text:soft-page-break/> here.',
    "comment": "Some<office:annotation><dc:creator>x</dc:creator><text:p>What a comment</text:p></office:annotation> words.",
    "number": "12",
}
ODT_BLOCKS = [
    '<text:h text:style-name="H1" text:outline-level="1">{}</text:h>',
    "<text:p>{}</text:p>",
    '<text:p text:style-name="P1">{}</text:p>',
    '<table:table table:name="t"><table:table-column/><table:table-row><table:table-cell><text:p>{}</text:p></table:table-cell>'
    "</table:table-row></table:table>",
    "<text:list><text:list-item><text:p>{}</text:p></text:list-item></text:list>",
    "<text:p/>",
]
SPACES = (
    " ".join(
        f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
        for name in ("office", "text", "table", "style", "draw", "meta")
    )
    + ' xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:dc="http://purl.org/dc/elements/1.1/"'
)
SPACES = SPACES.replace("xmlns:draw:1.0", "xmlns:drawing:1.0")


def odt_file(draw):
    names = list(ODT)
    body = "".join(draw.choice(ODT_BLOCKS).format(ODT[draw.choice(names)]) for _ in range(draw.randint(1, 6)))
    deleted = "<text:tracked-changes><text:changed-region><text:deletion><text:p>Old text</text:p></text:deletion>" + (
        "</text:changed-region></text:tracked-changes>"
    )
    content = f'<office:document-content {SPACES} office:version="1.3"><office:body><office:text>{deleted}{body}</office:text>'
    header = (
        "<style:header><text:p>A header</text:p></style:header><style:footer><text:p>Foot of the page</text:p></style:footer>"
    )
    styles = (
        f'<office:document-styles {SPACES} office:version="1.3"><office:master-styles><style:master-page style:name="Standard">'
    )
    members = {
        "content.xml": f"{content}</office:body></office:document-content>",
        "styles.xml": f"{styles}{header}</style:master-page></office:master-styles></office:document-styles>",
        "META-INF/manifest.xml": '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0">'
        '<manifest:file-entry manifest:full-path="/" manifest:media-type="application/vnd.oasis.opendocument.text"/>'
        '<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/>'
        '<manifest:file-entry manifest:full-path="styles.xml" manifest:media-type="text/xml"/></manifest:manifest>',
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        package.writestr(zipfile.ZipInfo("mimetype"), "application/vnd.oasis.opendocument.text")
        for name, text in members.items():
            package.writestr(name, '<?xml version="1.0" encoding="UTF-8"?>\n' + text)
    return stream.getvalue()


def rewritten(data, changed, more=(), how=zipfile.ZIP_DEFLATED):
    """A zip file with the members that a function makes of each, and more."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            if (content := changed(member.filename, old.read(member))) is not None:
                new.writestr(member, content, how)
        for name in more:
            new.writestr(name, more[name])
    return stream.getvalue()


def members(data):
    with zipfile.ZipFile(io.BytesIO(data)) as package:
        return {name: package.read(name) for name in package.namelist()}


UNSEEN = {f"{{{W}}}{name}" for name in ("r", "t", "rPr", "proofErr", "lastRenderedPageBreak", "softHyphen", "noBreakHyphen")}
PARAGRAPHS = {f"{{{W}}}p", f"{{{TEXT}}}p", f"{{{TEXT}}}h"}
LOOKS = {f"{{{W}}}rPr", f"{{{TEXT}}}s"}


def within(paragraph):
    """The elements in a paragraph that are in no other, without the properties of text."""
    for child in paragraph:
        if child.tag not in PARAGRAPHS and child.tag not in LOOKS:
            yield child
            yield from within(child)


def skeleton(data):
    """What a part has but its text: the tree down to the paragraphs, and what each holds."""
    root = etree.fromstring(data)
    paragraphs = [each for each in root.iter() if each.tag in PARAGRAPHS]
    found = []
    for each in paragraphs:
        own = [x for x in within(each) if x.tag not in UNSEEN]
        inside = sorted((str(x.tag), sorted(item for item in x.attrib.items() if item[0] != "descr")) for x in own)
        found.append(([x.tag for x in each.iterancestors() if x.tag not in UNSEEN], sorted(each.attrib.items()), inside))
    tops = [each for each in paragraphs if not any(x.tag in PARAGRAPHS for x in each.iterancestors())]
    for each in tops:
        each[:], each.text = [], None
    return found, etree.tostring(root, method="c14n")


def words(data):
    """Each word of a part with the format of its letters, and in which element it stands."""
    root, found = etree.fromstring(data), []
    for paragraph in root.iter():
        if paragraph.tag not in PARAGRAPHS:
            continue
        letters = []
        for element in within(paragraph):
            if element.tag == f"{{{W}}}t":
                properties = element.getparent().find(f"{{{W}}}rPr")
                look = "".join(
                    sorted(x.tag[len(W) + 2 :] for x in properties if "lang" not in x.tag) if properties is not None else []
                )
                link = element.getparent().getparent().tag[len(W) + 2 :]
                letters += [(letter, look, link) for letter in element.text or ""]
            elif element.tag[len(W) + 2 :] in ("tab", "br"):
                letters.append((" ", "", ""))
        spaced = "".join(letter for letter, _, _ in letters)
        for match in re.finditer(r"\S+", spaced):
            found.append((match[0], {each[1:] for each in letters[match.start() : match.end()]}))
    return found


READERS = {"docx": lambda data: docx.Document(io.BytesIO(data)), "odt": lambda data: opendocument.load(io.BytesIO(data))}
MAKERS = {"docx": docx_file, "odt": odt_file}


def texts_of(form, data):
    """The members that have paragraphs."""
    names = {"docx": r"word/(document|header1|footer1|footnotes|comments)\.xml", "odt": r"(content|styles)\.xml"}[form]
    return {name: content for name, content in members(data).items() if re.fullmatch(names, name)}


def same(form, old, new, seed=None):
    """Whether a translation opens, and has the skeleton of its source."""
    READERS[form](new)
    before, after = members(old), members(new)
    assert list(before) == list(after), seed
    texts = texts_of(form, old)
    for name, content in before.items():
        if name in texts:
            assert skeleton(content) == skeleton(after[name]), (seed, name)
        else:
            assert content == after[name], (seed, name)


@pytest.mark.parametrize("form", MAKERS)
def test_files_keep_their_structure(form):
    for seed in range(15):
        data = MAKERS[form](random.Random(f"{form} {seed}"))
        assert members(translated(data, f"a.{form}", str)) == members(data), seed
        found = translated(data, f"a.{form}")
        same(form, data, found, seed)
        if form == "docx":
            for name, content in texts_of(form, data).items():
                old, new = words(content), words(members(found)[name])
                fixed = {"12", "3", "hidden"}
                wanted = [(word if word in fixed else word.swapcase(), looks) for word, looks in old]
                assert new == wanted, (seed, name)


def with_characters(draw, text):
    at = draw.randrange(len(text) + 1)
    pieces = [
        *'< > </w:r> <w:r> <w:t> & &amp; "'.split(),
        "<!-- x -->",
        "é",
        "<text:span>",
        "</text:p>",
        " ",
        "<text:s/>",
    ]
    return text[:at] + draw.choice(pieces) + text[at + draw.randint(0, 2) :]


def with_tree(draw, text):
    try:
        root = etree.fromstring(text.encode())
    except etree.XMLSyntaxError:
        return text
    for _ in range(draw.randint(1, 3)):
        inner = [each for each in root.iter() if each.getparent() is not None]
        if not inner:
            break
        one, other = draw.choice(inner), draw.choice(inner)
        match draw.randrange(4):
            case 0:
                one.getparent().remove(one)
            case 1:
                one.addnext(etree.fromstring(etree.tostring(one, with_tail=False)))
            case 2 if one not in other.iterancestors() and one is not other:
                other.addnext(one)
            case 3:
                one.tail = (one.tail or "") + draw.choice([" loose text ", "\n", "x"])
    return etree.tostring(root, encoding="UTF-8", xml_declaration=True).decode()


def mutated(draw, data, form):
    """A file with a change in the XML of a part, in its tree or its characters, or in the bytes of the zip."""
    kind = draw.random()
    if kind < 0.15:
        at = draw.randrange(len(data))
        return draw.choice(
            [data[:at], data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :], data[:at] + data[at + draw.randint(1, 9) :]]
        )
    chosen = draw.choice([*texts_of(form, data)] * 4 + [*members(data)])

    def changed(name, content):
        if name != chosen:
            return content
        try:
            return (with_tree if kind < 0.8 else with_characters)(draw, content.decode())
        except UnicodeDecodeError:
            return None

    return rewritten(data, changed)


def check(form, seed):
    draw = random.Random(f"mutated {form} {seed}")
    data = mutated(draw, MAKERS[form](draw), form)
    name = f"a.{form}"
    try:
        found = translated(data, name)
        assert members(translated(data, name, str)) == members(data)
    except ValueError as error:
        assert type(error) is ValueError and str(error).startswith(name) and "\n" not in str(error), error
        return False
    try:
        skeletons = {name: skeleton(content) for name, content in texts_of(form, data).items()}
    except etree.XMLSyntaxError as error:  # lxml also checks the addresses of namespaces
        assert "is not a valid URI" in str(error)
        return True
    assert all(skeleton(members(found)[name]) == wanted for name, wanted in skeletons.items()), seed
    try:
        READERS[form](data)
    except Exception:  # a part is missing, or an element that it needs
        return True
    same(form, data, found, seed)
    return True


@pytest.mark.parametrize("form", MAKERS)
def test_mutated_files(form):
    results = [check(form, seed) for seed in range(12)]
    assert 2 < sum(results) < 12


@pytest.mark.long
@pytest.mark.parametrize("form", MAKERS)
def test_500_mutated_files(form):
    results = [check(form, seed) for seed in range(12, 512)]
    assert 100 < sum(results) < 500


def simple_docx(*paragraphs, how=zipfile.ZIP_DEFLATED):
    document = docx.Document()
    stream = io.BytesIO()
    document.save(stream)
    inner = "".join(f"<w:p>{each}</w:p>" for each in paragraphs)

    def changed(name, old):
        return part("document", f"<w:body>{inner}<w:sectPr/></w:body>") if name == "word/document.xml" else old

    return rewritten(stream.getvalue(), changed, how=how)


def body(data):
    """The inside of each paragraph."""
    return re.findall("<w:p>(.*?)</w:p>", members(data)["word/document.xml"].decode())


def test_what_word_splits_is_one_sentence():
    """Runs that look alike, hyphens, spelling marks and bookmarks tear no sentence apart; tabs and line breaks do."""
    seen = Fake(str)
    content = read_content(simple_docx(*SENTENCES.values()), "a.docx", "docx", Options())
    translate_units(seen, content.units)
    assert sorted(seen.seen) == sorted(
        [
            "The red house is far.",
            "It is not here.",
            "See the manual first.",
            "A claim of ours.",
            "On page 3 of it.",
            "Some site of <ours>.",
            "First",
            "second",
            "third one",
            "Text in a box",
            "Text in a box",
            "Red house",
            "Words go on.",
            "New text stays.",
            "Marked words",
            "Click here",
        ]
    )


def test_runs_of_a_translation():
    """A run for each text in a format, with the language of none; fields, links and what stays keep their places."""
    found = body(
        translated(simple_docx(*(SENTENCES[name] for name in ("runs", "link", "field", "old link", "footnote"))), "a.docx")
    )

    def run(text, look=""):
        return f'<w:r>{f"<w:rPr>{look}</w:rPr>" * bool(look)}<w:t xml:space="preserve">{text}</w:t></w:r>'

    assert found[0] == run("tHE RED ") + run("HOUSE", "<w:b/>") + run(" IS FAR. iT IS ") + run("NOT", "<w:i/>") + run(" HERE.")
    link = run("THE MANUAL", '<w:rStyle w:val="Hyperlink"/>')
    assert found[1] == run("sEE ") + f'<w:hyperlink r:id="rId1" w:history="1">{link}</w:hyperlink>' + run(" FIRST.")
    assert re.sub("<.*?>", "", found[2]) == "oN PAGE  PAGE 3 OF IT." and found[2].count("fldChar ") == 3
    assert found[3].index("separate") < found[3].index("sOME SITE") < found[3].index("end") < found[3].index("OF &lt;OURS&gt;")
    assert found[4].index("CLAIM") < found[4].index("footnoteReference") < found[4].index("OF OURS")


def test_spaces_of_odt():
    def content(inner):
        data = odt_file(random.Random(1))
        text = f"<office:document-content {SPACES}><text:p>{inner}</text:p></office:document-content>"
        found = translated(rewritten(data, lambda name, old: text if name == "content.xml" else old), "a.odt")
        return re.search("<text:p>(.*)</text:p>", members(found)["content.xml"].decode(), re.DOTALL)[1]

    assert content("One<text:s/>two.") == "oNE TWO."
    assert content('One.<text:s text:c="3"/>Two.') == 'oNE. <text:s text:c="2"/>tWO.'
    assert content("<text:s/>One\n two<text:tab/>a  b") == "<text:s/>oNE TWO<text:tab/>A B"
    assert content('One <text:span text:style-name="a">two</text:span>.') == 'oNE <text:span text:style-name="a">TWO</text:span>.'
    assert len(content('One.<text:s text:c="2000000000"/>Two.')) < 100


def bomb(name, count, ratio=2_000_000):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as package:
        for number in range(count):
            package.writestr(name.format(number), b" " * ratio)
    return stream.getvalue()


def twice(data):
    stream = io.BytesIO(data)
    with pytest.warns(UserWarning), zipfile.ZipFile(stream, "a") as package:
        package.writestr("word/document.xml", "<a/>")
    return stream.getvalue()


def with_flag(data):
    """A zip whose first member says that it is encrypted."""
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + b"\x01" + data[at + 1 :]


def with_part(inner, name="word/document.xml"):
    return rewritten(simple_docx(), lambda each, old: inner if each == name else old)


NEST = "<w:r><w:pict><w:p>", "</w:p></w:pict></w:r>"
ENTITY = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>"
REFUSED = {
    "no zip": (lambda: b"text", "not a zip file"),
    "an old file": (lambda: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" * 90, "before 2007"),
    "a ratio": (lambda: bomb("a{}", 1), "more than 200 times its size"),
    "members": (lambda: bomb("a{}", 5001, 1), "5,001 members exceed"),
    "sizes": (lambda: bomb("a{}", 300, 999_999), "unpacks to more than 256,000,000"),
    "names": (lambda: twice(simple_docx()), "of one name"),
    "a password": (lambda: with_flag(simple_docx()), "is encrypted"),
    "another zip": (lambda: bomb("a{}", 1, 10), "no member"),
    "no document": (lambda: with_part("<Relationships/>", "_rels/.rels"), "no part of it is the document"),
    "an entity": (lambda: with_part(ENTITY + "<a/>"), r"word/document\.xml.*declares an entity"),
    "an entity beside": (lambda: with_part(ENTITY + "<a/>", "_rels/.rels"), "declares an entity"),
    "another prefix": (lambda: with_part(f"<x:document xmlns:x='{W}'/>"), "usual prefix, w"),
    "UTF-16": (lambda: with_part("<a/>".encode("utf-16")), "UTF-16"),
    "boxes": (lambda: simple_docx(NEST[0] * 9 + NEST[1] * 9), "more than 8 paragraphs within"),
    "elements": (lambda: simple_docx("<w:a>" * 300 + "</w:a>" * 300), "more than 200 elements"),
    "a part too large": (
        lambda: with_part("<a>" + random.Random(1).randbytes(9_000_000).hex() + "</a>"),
        "larger than 16,000,000 bytes",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_hostile_packages(what):
    make, said = REFUSED[what]
    with pytest.raises(ValueError, match=f"^a.docx.*{said}"):
        translated(make(), "a.docx")


def test_encrypted_odt():
    data = odt_file(random.Random(1))
    locked = rewritten(data, lambda name, old: b"<manifest:encryption-data/>" if "manifest" in name else old)
    with pytest.raises(ValueError, match=r"^a.odt: encrypted; save it without a password"):
        translated(locked, "a.odt")
    with pytest.raises(ValueError, match=r"^a.odt: not an ODT file"):
        translated(simple_docx(), "a.odt")


RUN = "<w:r><w:t>a</w:t></w:r>"
BEGIN, END = (f"<w:r><w:fldChar w:fldCharType='{kind}'/></w:r>" for kind in ("begin", "end"))
LONG = [
    RUN * 12_000,
    "<w:r><w:rPr><w:b/></w:rPr><w:t>a</w:t></w:r><w:r><w:t>b</w:t></w:r>" * 6_000,
    RUN + BEGIN * 10_000 + END * 10_000,
    RUN + (BEGIN + END) * 10_000,
    "".join(f"<w:r><w:rPr><w:sz w:val='{n}'/></w:rPr><w:t>a</w:t></w:r>" for n in range(6_000)),
    "<w:hyperlink>" * 90 + RUN * 6_000 + "</w:hyperlink>" * 90,
    RUN + "<w:bookmarkStart/>" * 12_000 + RUN,
]


@pytest.mark.parametrize("inner", LONG, ids=lambda each: each[:12])
def test_documents_made_to_take_long(inner):
    data = simple_docx(inner, how=zipfile.ZIP_STORED)
    began = time.process_time()
    with suppress(ValueError):
        assert read_content(data, "a.docx", "docx", Options()).units
    assert time.process_time() - began < 5


def test_documents_by_a_model(tmp_path, capfd):
    """A bold word in the middle of a sentence is still one, and so are a link, a note and all around."""
    inner = SENTENCES["runs"], SENTENCES["link"], SENTENCES["footnote"]
    (tmp_path / "a.docx").write_bytes(simple_docx(f"<w:r><w:t>{LINE}</w:t></w:r>", *inner))
    (tmp_path / "b.odt").write_bytes(odt_file(random.Random(5)))
    run(capfd, "--model", ROOT / "data" / "demo.en-de", tmp_path / "a.docx", tmp_path / "b.odt", "-o", f"{tmp_path}/out/")
    for name in ("a.docx", "b.odt"):
        old, new = ((folder / name).read_bytes() for folder in (tmp_path, tmp_path / "out"))
        assert old != new
        same(name[2:], old, new)
    first, second, *_ = docx.Document(tmp_path / "out" / "a.docx").paragraphs
    assert first.text.startswith("Zwei") and first.text != LINE
    bold = [each.text for each in second.runs if each.bold]
    assert len(bold) == 1 and bold[0].strip() and bold[0] != second.text
    said = run(
        capfd, "--model", ROOT / "data" / "demo.en-de", tmp_path / "a.docx", "-o", f"{tmp_path}/out/", "--resume", status=2
    )
    assert "--resume cannot be combined with files of other formats" in said


def test_no_document_on_a_terminal(tmp_path, monkeypatch):
    path = tmp_path / "a.docx"
    path.write_bytes(simple_docx(SENTENCES["runs"]))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(ValueError, match=r"a\.docx: its translation is no text for a terminal; name a file or folder with -o"):
        File.read(str(path), None, "docx", Options(), None)
    assert File.read(str(path), "b.docx", "docx", Options(), None).units

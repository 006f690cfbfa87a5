"""Tells by a file name's ending whether the file is lines of text or has a structure of its own.

Read as lines, the keys and code of a structured file would be translated too. Endings that are language codes, such as ``cs`` and
``pl``, also end the names of corpora and are left out, except ``arb`` (Flutter) and ``ts`` (Qt, TypeScript).
"""

from pathlib import PurePath

COMPRESSED = (".gz", ".zst")
_ENDINGS = """
yaml yml toml ini cfg conf env properties desktop plist json json5 jsonc jsonl ndjson geojson webmanifest hjson
strings stringsdict xcstrings arb resx resw rc ftl po pot mo
xml xhtml xht xsl xslt xsd dtd rss atom rdf owl ttl svg mathml kml gpx wsdl opml dita ditamap docbook dbk fb2 ts
xliff xlf sdlxliff mqxliff mxliff txlf xlz tmx tbx ttx storyboard xib ui qrc fxml xaml axml
md markdown mkdn mdown mdx qmd rmd rst rest adoc asciidoc asc textile org mediawiki creole pod rdoc typ
tex latex ltx bib sty texi texinfo dvi mdoc ipynb
html htm shtml mhtml mht php phtml asp aspx jsp erb ejs handlebars mustache j2 jinja jinja2 njk twig liquid tmpl vue svelte astro
haml slim pug
csv tsv psv ssv xls xlsx xlsm xlsb ods fods parquet arrow feather avro orc sqlite sqlite3 db mdb accdb sql dbf
doc docx docm dot dotx odt ott fodt rtf wpd pdf ps1 eps djvu epub mobi azw azw3 chm xps
ppt pptx pptm pps ppsx potx odp otp fodp odg idml indd vsd vsdx drawio
srt vtt sbv ass ssa smi ttml dfxp lrc
eml mbox msg ics vcf ldif
py pyi pyx js mjs cjs jsx tsx css scss sass less java kt kts scala groovy gradle c h cc cpp cxx hh hpp hxx mm cu rs go rb
swift dart lua jl erl ex exs hs clj cljs lisp scm rkt f90 pas nim zig bash zsh fish bat cmd fs proto thrift graphql gql
cmake tf hcl nix diff patch
"""
STRUCTURED = frozenset(_ENDINGS.split())


def ending_of(path: str) -> str:
    """The ending of a file's name without those of compression, in lower case and without its dot."""
    name = PurePath(path)
    return (name.with_suffix("") if name.suffix in COMPRESSED else name).suffix[1:].lower()


def is_lines(path: str) -> bool:
    """Whether a file is lines of text."""
    return ending_of(path) not in STRUCTURED

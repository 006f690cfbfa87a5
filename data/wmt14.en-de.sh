#!/bin/sh
# WMT14 English-German: data/wmt14.en-de.sh [--local DIR] [--output DIR] [--mask-predict] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/corpora.py" wmt14.en-de "$@"

#!/bin/sh
# WMT16 English-Romanian: data/wmt16.en-ro.sh [--local DIR] [--output DIR] [--mask-predict] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/corpora.py" wmt16.en-ro "$@"

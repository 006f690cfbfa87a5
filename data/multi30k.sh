#!/bin/sh
# Multi30k English-German: data/multi30k.sh [--local DIR] [--output DIR] [options of prepare.sh]
here=$(dirname "$0")
exec sh "$here/python.sh" "$here/corpora.py" multi30k "$@"
